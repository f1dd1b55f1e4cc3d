// Package policy applies the rules of a configuration: it translates them for the steering, adds the rules of opt-ins and
// trials, and counts what connections under them did. The programs, not this package, decide about each connection. The
// trap: decisions are counted by rule number, so the rule of a trial must never precede a rule of the configuration.
package policy
