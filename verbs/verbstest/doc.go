// Package verbstest is the conformance suite every verbs device must pass: the
// rules of the InfiniBand specification and of libibverbs that code above the
// device relies on, each test citing its source.
//
// It exists so that a stream that works on one device works on all. A device
// package calls Run with a function that opens two devices which reach each
// other. The suite drives both from one goroutine, so that it decides what
// happens first; it tests no timing and no concurrency, which the device's own
// tests must.
//
// What a device cannot do it must say in its DeviceAttr; the suite then checks
// that the operation is refused with verbs.ErrNotSupported.
package verbstest
