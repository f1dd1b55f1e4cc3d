package netstack

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// An old duplicate reaches no endpoint, whatever its sequence number, and is acknowledged. A retransmission has the timestamp
// of the moment, which may be that of the last segment.
func TestOldDuplicate(t *testing.T) {
	b := newBench(t, Config{})
	c := b.accept(1, 100)
	c.grown(t)
	const ack = cookieISS + 1
	recent := uint32(1 << 20)
	send := func(seq, stamp uint32, flags byte, payload string) {
		t.Helper()
		opts := packet.AppendTimestamps(nil, stamp, 0)
		b.link.Inject(segmentOf(clientAddr(1), serverAddr(false), seq, ack, flags, opts, []byte(payload)))
	}
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		readFull(t, c, got)
		require.Equal(t, want, string(got))
	}
	acked := func(seq uint32) {
		t.Helper()
		for _, seg := b.next(); seg.Ack() != seq; {
			_, seg = b.next()
		}
	}
	send(101, recent, packet.FlagACK, "new")
	read("new")
	acked(104)
	send(104, recent-1, packet.FlagACK, "old")
	within(t, "it is judged", func() bool { return b.s.Stats().OldStamps == 1 })
	acked(104)
	send(104, recent-1, packet.FlagACK|packet.FlagFIN, "")
	within(t, "it is judged", func() bool { return b.s.Stats().OldStamps == 2 })
	send(105, recent, packet.FlagACK, "eird") // after a gap
	send(104, recent, packet.FlagACK, "w")    // a retransmission
	read("weird")
	send(104, recent, packet.FlagACK, "weird") // once more
	send(109, recent+1, packet.FlagACK, "!")
	read("!")
	require.EqualValues(t, 2, b.s.Stats().OldStamps)
	send(110, 1, packet.FlagRST|packet.FlagACK, "") // RFC 7323 5.2: resets are exact
	within(t, "reset", c.Over)
}
