// Package guard decides when carrying does harm: when too many of the connections that
// gateways carried, or that were in process, were reset by smcgw, or connections in the share of the rollout take longer
// than those outside of it. It reads no clock and changes nothing: its owner does.
package guard
