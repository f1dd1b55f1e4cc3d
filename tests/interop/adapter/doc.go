// Package adapter is what the tests of tests/interop run inside a guest: the suite of verbs/verbstest on an adapter of
// the guest's kernel, whose two ends are contexts of that adapter.
//
// It exists because the device on adapters needs an adapter, which test hosts do not have. Its test binary, built with
// cgo, runs in the guest unchanged.
//
// The trap: it does nothing unless an adapter is named in [Variable].
package adapter

// Variables in the environment of the test binary.
const (
	// Variable names the adapter.
	Variable = "SMCGW_ADAPTER"
	// AbsenceVariable names the error that opening the adapter must fail with.
	AbsenceVariable = "SMCGW_ABSENCE"
)
