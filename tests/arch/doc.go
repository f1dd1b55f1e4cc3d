// Package arch holds the rules of the code base that a machine can check: which
// package may import which, what must be documented, whether what documents name
// is there. It counts no lines, methods or words.
//
// It exists because such rules decay silently otherwise. It consists of tests
// only and knows the code from its source; it judges no style that a linter
// judges.
//
// Each rule is a function from a source tree to the problems it sees there, and
// is tried on a small bad example too. The trap it avoids: a rule that can no
// longer see anything passes for ever.
package arch
