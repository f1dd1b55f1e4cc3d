// Package launch starts programs with the library: what kind of program a file is, which build of the library it can
// load, and the environment that loads it.
//
// The trap: a program that cannot load the library does not fail. It runs natively, so whoever starts it must say so.
package launch
