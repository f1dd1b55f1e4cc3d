// Package rulewatch tells that rules or routes of a network namespace have changed.
//
// It exists because what they did to packets has to be proved again then. It does not
// tell what has changed. The trap: rules of iptables change in silence.
package rulewatch
