// Package adapter is what the tests of tests/interop run inside of a guest: the
// suite of verbs/verbstest on an adapter of the kernel there, both ends being
// contexts of the same one.
//
// It exists because the device on adapters needs an adapter, which hosts of
// tests do not have. Built with cgo, its test binary runs in the guest as it is.
//
// The trap: it does nothing where no adapter is named, which its name in
// [Variable] does.
package adapter

// Variables in the environment of the test binary.
const (
	// Variable names the adapter.
	Variable = "SMCGW_ADAPTER"
	// AbsenceVariable names the error that opening the adapter must fail with.
	AbsenceVariable = "SMCGW_ABSENCE"
)
