// Package load holds the programs that benchmarks run on the hosts of a test
// network: a server, and a client that asks it for one job after another and
// prints what came of it as JSON.
//
// It exists because what is measured must be in processes of its own, one a
// side, as gateways are: the processor time of either can be read, and neither
// is disturbed by the test that watches. The same job can be done by
//
//	tcp   ordinary sockets of the Go programs
//	udp   ordinary sockets, only as an echo
//	raw   UDP sockets and trains cut by the kernel (UDP_SEGMENT), cumulatively
//	      acknowledged, without transport and checksum: what a device on UDP
//	      could reach at most
//	rsocket-soft
//	      streams of package rsocket, as a program uses them
//	soft  a reliable connection of verbs/soft, driven by a verbs.Loop
//
// It is one of the programs of package apps: TestMain, or main, gives [App] to
// apps.Init.
//
// The trap: processor time is that of a whole process, and over veth the sender's
// system calls do most of the receiver's network stack. Only the sum of both
// sides means something.
package load
