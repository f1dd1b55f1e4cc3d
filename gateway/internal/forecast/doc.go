// Package forecast keeps what connections did while nothing was carried, and says for
// which services carrying them could pay.
//
// It exists so that an operator knows before the first connection is carried. It is no
// measurement: smcgw bench is.
package forecast
