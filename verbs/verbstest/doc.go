// Package verbstest is the conformance suite every verbs device must pass: the
// rules of the InfiniBand specification and of libibverbs that code above the
// device relies on, each test citing its source. What neither settles, the
// kernel's rxe does.
//
// It exists so that a stream that works on one device works on all. A device
// package calls Run with a function that opens two devices which reach each
// other. The suite drives both from one goroutine, so that it decides what
// happens first; only the tests of sleeping loops give the vectors away. It
// tests no timing but lower bounds and no concurrency, which the device's own
// tests must.
//
// What a device cannot do it must say in its DeviceAttr; the suite then checks
// that the operation is refused with verbs.ErrNotSupported, and no test is
// skipped. What needs a network is asked of devices that have addresses
// (PortAttr.GIDs).
//
// The trap: the network between the two must lose nothing, as that of one host
// does, or tests of the unreliable transports fail. What a device does about
// loss its own tests have to show.
package verbstest
