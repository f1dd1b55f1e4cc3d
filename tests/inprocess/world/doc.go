// Package world builds libsmcgw.so and the programs of its tests, and runs them with the library at brokers of
// their own, or natively.
//
// A program that imports it and wants brokers that can be killed calls [Init] first: such a broker is the program
// itself, run once more.
package world
