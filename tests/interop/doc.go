// Package interop tests the software RDMA device (verbs/soft), the connection
// manager (rsocket/cm) and rsockets (rsocket) against the implementations others
// wrote: the Linux kernel's rxe, the library of rdma-core, and its and
// perftest's programs, in a small virtual machine on a tap (tests/interop/guest).
//
// It exists because a protocol that only its author's two ends speak is not
// that protocol. Our ends of each program's private protocol are in files
// *_peer_test.go, in both roles; each test runs one against the program.
//
// TestHosts uses the guest in another way: its kernel has devices and balancers that
// the kernel of the tests may lack, so tests of tests/e2e about them run there,
// between namespaces.
//
// TestAdapterSockets and TestKernelCM run our side in the guest, too: on rxe, through
// libibverbs and the kernel's connection manager, as it runs on an adapter.
//
// TestAdapterHosts has two guests on one network, with gateways that carry on rxe what
// stock programs send, or what programs with the library have in their rings. It takes
// from them what they need: links, addresses, drivers, memory, gateways, a host.
//
// `make test` runs a sample with kernel 6.12, `make interop` (SMCGW_INTEROP=all)
// everything with 6.12 and 6.1 and more iterations. Both need root,
// /dev/net/tun and qemu-system-x86 and skip without (SMCGW_REQUIRE=vm turns
// that into a failure). The guest is built from Debian's packages by the first
// run, about 140 MB, into the user's cache directory.
//
// The trap: the guest is emulated, so all its times are long and uneven. And the
// programs have faults of their own, described where a test works around one.
package interop
