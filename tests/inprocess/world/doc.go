// Package world builds libsmcgw.so and the programs of its tests, and runs them with the library and a broker of their
// own, or natively.
//
// A program that wants brokers that can be killed must call [Init] first: such a broker is another process of the same
// program.
package world
