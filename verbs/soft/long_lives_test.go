package soft

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// TestRecoverFollows: congestion is reacted to however many packets were sent without a loss.
func TestRecoverFollows(t *testing.T) {
	g := newGuarded(t, true)
	g.talk()
	q, p := g.qps[0], g.qps[1]
	const step = 1 << 22
	for far := step; far <= 1<<25; far += step {
		// so many packets later, none of them lost
		q.req.una, q.req.high = wire.PSNAdd(q.req.una, step), wire.PSNAdd(q.req.high, step)
		p.resp.psn = wire.PSNAdd(p.resp.psn, step)
		g.write(0, 16<<10, g.mrs[1].RKey())
		g.must(time.Second, "done", func() bool { return len(g.wcs[0]) > 0 })
		g.wcs[0] = nil
		require.GreaterOrEqual(t, wire.PSNDiff(q.req.una, q.req.recover), int32(0), "after %d packets", far)
	}
	q.req.cc.window, q.req.cc.threshold = 1<<20, 1<<20
	q.notified()
	require.Less(t, q.req.cc.window, 1.0*(1<<20))
}

// TestStoredAtomicOfBefore: a repeated atomic is answered with its own result, not with that of the one with
// its PSN a turn of PSNs ago.
func TestStoredAtomicOfBefore(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	in := q.QP.(*qp)
	add := wire.Header{Opcode: wire.RCFetchAdd, PSN: hostilePSN, AckReq: true, VA: h.granted.addr(0), RKey: h.granted.RKey(), SwapAdd: 1}
	h.peerPacket(q, add, nil)
	require.Len(t, q.sent, 1)
	first := q.sent[0].Orig
	q.sent = nil
	// 2^24-1 WRITEs later the expected PSN is the same again; none of them stores anything
	in.resp.psn = hostilePSN
	h.peerPacket(q, add, nil)
	require.Len(t, q.sent, 1)
	require.Equal(t, first+1, q.sent[0].Orig)
	q.sent = nil
	h.peerPacket(q, add, nil) // its answer was lost
	require.Len(t, q.sent, 1)
	require.Equal(t, first+1, q.sent[0].Orig, "answered with the value of 2^24 packets ago")
}

// TestStoredReadOfBefore: nor is a repeated READ taken for one of before.
func TestStoredReadOfBefore(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	in := q.QP.(*qp)
	read := wire.Header{Opcode: wire.RCReadRequest, PSN: hostilePSN, AckReq: true, VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 8 * 256}
	h.peerPacket(q, read, nil)
	h.m.w.run(time.Millisecond, nil)
	require.NotEmpty(t, q.sent)
	q.sent = nil
	psn := wire.PSNAdd(hostilePSN, 3)
	in.resp.psn = psn // 2^24-5 WRITEs later
	read.PSN, read.VA, read.Length = psn, h.granted.addr(1024), 256
	h.peerPacket(q, read, nil)
	require.Equal(t, wire.RCReadResponseOnly, q.sent[len(q.sent)-1].Opcode)
	h.m.w.run(10*time.Millisecond, nil)
	q.sent = nil
	for range 5 {
		h.peerPacket(q, read, nil)
		h.m.w.run(time.Millisecond, nil)
	}
	answers := 0
	for _, s := range q.sent {
		if s.Opcode == wire.RCReadResponseOnly {
			answers++
		}
	}
	require.NotZero(t, answers, "a repeated READ is never answered: %v", q.sent)
}

// TestRefusesWhileItAnswers: a queue pair that refuses while it answers owes the NAK, and is used again.
func TestRefusesWhileItAnswers(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	h.m.w.run(time.Millisecond, nil) // nothing is waiting to be sent
	read := wire.Header{Opcode: wire.RCReadRequest, PSN: hostilePSN, AckReq: true, VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 256}
	closed := false
	h.dev.loops[0].turn = append(h.dev.loops[0].turn, func() bool {
		if len(q.QP.(*qp).resp.jobs) > 0 && !closed {
			closed = true
			require.NoError(t, h.granted.Close()) // another goroutine does
		}
		return false
	})
	h.peerSend(q, read, nil)
	h.m.w.run(time.Millisecond, func() bool { return q.State() == verbs.QPSErr })
	require.True(t, closed)
	require.Equal(t, verbs.QPSErr, q.State())
	require.NoError(t, q.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	h.bring(q, verbs.QPSRTS)
	h.peerPacket(q, wire.Header{Opcode: wire.RCWriteOnly, PSN: hostilePSN, AckReq: true}, nil)
	h.m.w.run(time.Millisecond, nil)
	require.NotEmpty(t, q.acks(t), "never acknowledges again")
}

// TestPathWithoutPort: a lane that could not be opened once is opened when there is something to send.
func TestPathWithoutPort(t *testing.T) {
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9)})
	require.NoError(t, err)
	udp := uint16(free.LocalAddr().(*net.UDPAddr).Port)
	require.NoError(t, free.Close())
	short := true
	dev, err := Open(Config{
		Name: "x", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, UDPPort: udp, MTU: verbs.MTU1024,
		Within: func(open func() error) error {
			if short {
				return errors.New("too many open files")
			}
			return open()
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	v, a := dev.vectors[0], av{dst: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.10"), udp)}
	v.pathTo(&a, 5)
	short = false
	p := v.pathTo(&a, 5)
	port := v.link.(*udpLink).senders[0][5].port
	require.NotZero(t, port)
	require.Equal(t, newICRC(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), port), a.dst), p.icrc)
}

// TestRoundTripGrows: a path that becomes longer, by a new route or a queue, has its time measured.
func TestRoundTripGrows(t *testing.T) {
	for _, after := range []time.Duration{30, 100} {
		after *= time.Millisecond
		d := newDumbbell(t, 7, 1, simLine{rate: 25e6, rtt: time.Millisecond, queue: 256 << 10})
		b := newBulkOf(d.left[0], d.right[0], 256<<10, bulkDepth, verbs.MTU1024, 0, func([2]verbs.QP) {})
		q := b.qp.(*qp)
		q.attr.Timeout = 16
		d.run(time.Second, nil)
		d.wire(d.net.route(d.left[0].addr, d.right[0].addr), d.net.route(d.right[0].addr, d.left[0].addr), after)
		d.run(8*time.Second, nil)
		require.InDelta(t, after, time.Duration(q.req.rtt.srtt), float64(after)/2, "the round trip is known")
		before := d.left[0].dev.Stats().Timeouts
		d.run(2*time.Second, nil)
		require.LessOrEqual(t, d.left[0].dev.Stats().Timeouts-before, uint64(1), "after %v", after)
	}
}

// TestWindowAfterRest: a stream that has rested for long begins with a little again.
func TestWindowAfterRest(t *testing.T) {
	g := newGuarded(t, true)
	g.talk()
	for rest, want := range map[time.Duration]float64{idleReset / 2: maxWindow, 2 * idleReset: initialWindow} {
		cc := &g.qps[0].req.cc
		cc.window = maxWindow
		g.run(rest, nil)
		g.wcs = [2][]verbs.WC{}
		g.write(0, 100, g.mrs[1].RKey())
		g.must(time.Second, "an answer", func() bool { return len(g.wcs[0]) > 0 })
		require.EqualValues(t, want, cc.window, "after %v", rest)
	}
}
