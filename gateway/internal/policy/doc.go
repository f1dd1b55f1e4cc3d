// Package policy puts the rules of a configuration in force: it translates them for the
// steering, adds the rules of trials after them, and counts what connections under them did.
// It does not decide about a connection, the programs do. The trap: decisions are counted by
// the number of a rule, so a trial never comes before a rule of the configuration.
package policy
