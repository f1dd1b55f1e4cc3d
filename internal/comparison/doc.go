// Package comparison does works in interleaved rounds ([Runner]), keeps the results, and writes them as tables for a
// terminal and as JSON.
//
// Every benchmark of the project has the same kind of result: this work, done in these ways, took this much, in so many
// interleaved rounds, on this machine. A result is therefore not a number but a [Series], the value of every round.
// What is printed are medians with their spread, and ratios of values of the same round, because the noise of a shared
// machine affects both sides of a round alike.
//
// The package measures nothing itself, and knows neither gateways nor networks: the caller provides the works and the
// ways of doing them.
//
// A round that failed is a NaN at its place in [Series.Values]. Leaving it out would pair the rounds of two series
// wrongly.
package comparison
