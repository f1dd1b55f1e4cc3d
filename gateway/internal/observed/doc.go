// Package observed keeps what connections did while nothing was carried: how many they
// were and what they moved. It predicts nothing: smcgw bench --peer measures.
package observed
