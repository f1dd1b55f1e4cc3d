// Package comparison does works in interleaved rounds ([Runner]), keeps the results and writes
// them as a table for a terminal and as JSON.
//
// It exists because every benchmark of the project says the same kind of thing:
// this work, done these ways, took that much, in so many interleaved rounds, on
// this machine. A result is a [Series], the value of every round, and not a
// number: what is printed are medians with their spread, and ratios of values
// of the same round, since the noise of a shared machine hits both sides of a
// round alike.
//
// It measures nothing by itself, and knows neither gateways nor networks: works and the ways to
// do them are the caller's.
//
// The trap: a round that failed is a NaN at its place in [Series.Values], not a
// missing value. Leaving it out would pair the rounds of two series wrongly.
package comparison
