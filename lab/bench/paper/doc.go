// Package paper writes the results of the local comparison: package report has
// them as a table and as JSON, this one as a page of Markdown and as a chart, and
// with profiles.
//
// It measures nothing and knows neither gateways nor networks.
//
// The trap: what writes a text here must expect names that try to leave their
// place, such as a cell of a table.
package paper
