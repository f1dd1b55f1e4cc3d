// Package policy puts the rules of a configuration in force: it translates them for
// the steering, and adds the rules of trials after them. It does not decide about a
// connection, the programs do. The trap: decisions are counted by the number of a
// rule, so a trial never comes before a rule of the configuration.
package policy
