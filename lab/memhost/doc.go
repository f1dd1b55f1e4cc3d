// Package memhost makes complete hosts in memory: an application's kernel, a
// wire, and the steering, on which the gateway runs unchanged.
//
// It exists because most of what the gateway does can then be tested, and shown,
// without privilege: a [Network] joins hosts by wires with seeded loss,
// duplication, reordering and delay and with the middleboxes that eat, strip or
// mirror the option; a [Host] has addresses and a TCP stack with Dial and Listen
// for applications; [Host.StartGateway] puts a gateway on it.
//
// A [Model] is the steering of such a host: the same tables as the programs of
// package ebpf, function by function and under the same names, with packets in
// slices instead of socket buffers. It implements host.Steering, and
// host.Legs with a second TCP stack that plays the gateway's own sockets.
// It knows neither devices nor routes, so nothing here is translated, forwarded
// or fragmented, and nothing sends ICMP. What it does with packets it does as the
// programs do: a test gives it the same ones, in every state and liveness of the
// gateway (ebpf/testdata).
//
//	application ─ kernel ─┬─ wire egress ──────────────────────────► wire
//	                      ├◄ wire ingress ◄──────────────────────── wire
//	            (app side)│           ▲ │ (wire side)
//	        gateway's sockets         │ ▼
//	               ▲ │              netstack
//	               │ ▼                ▲ │
//	               └───── gateway ◄───┘ ▼
//
// The gateway's event loops want descriptors, so what an app leg gives them is
// one end of a loopback TCP connection, whose other end a bridge joins to the
// second stack: half-close, reset, linger and TCP_INFO are then the kernel's own.
//
// The trap: a bridge works in the background, where a kernel socket would have
// sent its reset before close() returned. The model therefore lets the segments
// of a leg through for as long as its bridge lives, whatever has become of the
// flow's entry.
package memhost
