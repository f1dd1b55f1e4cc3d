package netstack

import (
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/smcgw/smcgw/packet"
)

// A gateway that has died leaves the tuple to its host's kernel. The kernel's reset
// ends our connection, unless a socket of the application is still there: one in
// TIME_WAIT answers whatever comes, and stays for as long as segments come. gVisor
// takes each answer for a sign of life. So an answer counts only if it acknowledges
// what we could have sent. Where such answers are missing while others come in, the
// peer is gone.
//
// A host that cannot see the connection can send strange answers, too. They end it
// only if the peer has said nothing for strangeTime although it was asked.
const (
	strangeMost = 5
	strangeTime = 10 * time.Second
	// oldestACK is how far behind the last one an acknowledgement that was late may be.
	oldestACK = 1 << 20
)

// strangeACKs counts the strange answers since the peer's last one.
type strangeACKs struct {
	n     atomic.Uint32
	since atomic.Int64 // the first, nanoseconds of the stack's clock
}

// strange judges an inbound ACK of an established connection, and reports whether
// another host has taken the peer's place.
func (f *flow) strange(ack uint32, clock tcpip.Clock) bool {
	if f.plausible(ack) {
		if f.strangeACKs.n.Load() != 0 {
			f.strangeACKs.n.Store(0)
		}
		return false
	}
	at := clock.NowMonotonic().Sub(tcpip.MonotonicTime{}).Nanoseconds()
	n := f.strangeACKs.n.Add(1)
	if n == 1 {
		f.strangeACKs.since.Store(at)
	}
	return n >= strangeMost && at-f.strangeACKs.since.Load() >= int64(strangeTime)
}

// plausible reports whether the peer can acknowledge that.
func (f *flow) plausible(ack uint32) bool {
	return !packet.After(ack, f.sent.Load()) && !packet.After(f.una.Load()-oldestACK, ack)
}

// makeReset turns a bare acknowledgement into the reset its sender owes us: exactly at
// the sequence number that we expect.
func makeReset(t packet.TCP, expected uint32) {
	t.SetSeq(expected)
	t.SetFlags(packet.FlagRST)
}
