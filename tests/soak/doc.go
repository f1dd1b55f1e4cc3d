// Command soak runs gateways under a mixture of applications and faults for a
// while and reports whether anything was lost: `make soak`, for instance `make soak
// SOAK=60s SEED=7`.
//
//	a1 ──── shm ──── a2        p: a plain host
//	  \             /
//	  soft       soft          every byte of every flow is checked by the
//	     \       /             program that receives it
//	       b1
//
// It exists because faults come together: what each test of the suite breaks
// alone breaks here while other things are broken. Everything random, which
// programs run with which sizes and which fault comes when and where, is drawn
// from one seed, which is printed. (What meets what also depends on the machine's
// speed: the same seed gives the same programs and the same faults, but not at the
// same microsecond.)
//
// A soak has phases:
//
//	build ─► warm up ─► settle ─► measure ─► load and faults ─► settle ─► measure ─► end
//
// Both measurements are of idle gateways. Whatever has grown in between by more than
// its tolerance (goroutines, descriptors, heap, resident memory, entries of maps,
// memory of the pool, quarantine) is an error. So are: an application that fails
// in any way but the one its work is about; a program that does not end in time; a
// wrong byte; a gateway that does not end cleanly or leaves something behind; a
// stall or a panic that a gateway has counted.
//
// The only connections that may fail are those that a gateway carries when it
// is killed: they are made for that purpose, and must end by a reset. No
// other carried flow uses a gateway that is about to be killed; native flows
// and connection attempts do, and count.
//
// The last line is exactly:
//
//	flows=N bytes=N faults=N switches=N errors=N
//
// where switches are demotions. The exit status is 1 if there were errors.
//
// The trap: the programs on the hosts are this binary itself, so main must call
// apps.Init first.
package main
