// Package rulewatch tells that devices, addresses, rules or routes of a network namespace
// have changed.
//
// It exists because programs and proofs have to follow them. It does not tell what has
// changed, so that a message that was lost is one that was told. The trap: rules of iptables
// change in silence.
package rulewatch
