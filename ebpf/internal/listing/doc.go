// Package listing asks the kernel again where what it lists changes while it lists it.
//
// It knows no list, and of a map no more than that it has keys. The trap: a list that is whole may be out of date when its reader
// looks at it; the events that the reader follows tell.
package listing
