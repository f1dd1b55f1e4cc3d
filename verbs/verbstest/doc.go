// Package verbstest is the conformance suite that every verbs device must pass: the rules of the InfiniBand
// specification and of libibverbs that code above the device relies on. Each test cites its source. Where both are
// silent, the kernel's rxe decides.
//
// With it, a stream that works on one device works on all. A device package calls Run with a function that opens two
// devices which reach each other. The suite drives both from one goroutine to control the order of events; only the
// tests of sleeping loops give the vectors away. It tests no timing except lower bounds, and no concurrency, which the
// device's own tests must cover.
//
// A device must declare in its DeviceAttr what it cannot do; the suite then checks that the operation is refused with
// verbs.ErrNotSupported, and no test is skipped. Tests that need a network run on devices that have addresses
// (PortAttr.GIDs).
//
// The trap: the network between the two devices must not lose packets, like that of one host, or tests of the
// unreliable transports fail. Behavior under loss must be covered by the device's own tests.
package verbstest
