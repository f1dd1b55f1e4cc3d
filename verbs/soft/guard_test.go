package soft

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// effects are what a packet can do to an end of a connection, with packets under
// way to the peer; do makes it of a genuine one. bits is what has to be guessed of
// the PSN and what signs an answer.
var effects = map[string]struct {
	op   wire.Opcode
	do   func(f *forgery)
	bits func(q *qp) float64
}{
	"bytes in the memory": {wire.RCWriteOnly, func(*forgery) {}, func(*qp) float64 { return 24 }},
	"bytes that come early": {
		wire.RCWriteOnly, func(f *forgery) { f.PSN = wire.PSNAdd(f.PSN, 1) },
		func(*qp) float64 { return 24 - bitsOf(earlyPackets) },
	},
	"gap, which asks for more": {
		wire.RCWriteOnly, func(f *forgery) { f.PSN = wire.PSNAdd(f.PSN, 2) },
		func(q *qp) float64 { return 24 - bitsOf(maxWindow/q.mtu) },
	},
	"repetition, which is answered": {
		wire.RCWriteOnly, func(f *forgery) { f.PSN = wire.PSNAdd(f.PSN, -1) },
		func(q *qp) float64 { return 24 - bitsOf(maxWindow/q.mtu) },
	},
	"mark, which slows the peer down": {
		wire.RCWriteOnly, func(f *forgery) { f.ce, f.PSN, f.AckReq = true, wire.PSNAdd(f.PSN, -1), false },
		func(q *qp) float64 { return 24 - bitsOf(2*maxWindow/q.mtu) },
	},
	"acknowledgement":   {wire.RCAcknowledge, func(*forgery) {}, signedBits},
	"gap of the peer's": {wire.RCAcknowledge, func(f *forgery) { f.Syndrome = wire.NAKSequence }, signedBits},
	"refusal": {wire.RCAcknowledge, func(f *forgery) {
		f.Syndrome, f.PSN = wire.NAKRemoteAccess, wire.PSNAdd(f.PSN, -4)
	}, signedBits},
	"peer not ready": {wire.RCAcknowledge, func(f *forgery) { f.Syndrome = wire.RNR | 20 }, signedBits},
	"notification":   {wire.CNP, func(*forgery) {}, func(*qp) float64 { return 24 }},
}

func signedBits(q *qp) float64 { return 24 + 24 - bitsOf(maxWindow/q.mtu) }

// What has all fields right has its effect; with one of them wrong it has none
// and is counted.
func TestGuardAllButOne(t *testing.T) {
	wrong := map[string]func(g *guarded, f *forgery){
		"nothing":       func(*guarded, *forgery) {},
		"queue pair":    func(_ *guarded, f *forgery) { f.DestQP ^= 1 << 20 },
		"partition key": func(_ *guarded, f *forgery) { f.PKey ^= 1 << 3 },
		"everyone's":    func(_ *guarded, f *forgery) { f.PKey = defaultPartition },
		"half a member": func(_ *guarded, f *forgery) { f.PKey &^= wholeMember },
		"source port":   func(_ *guarded, f *forgery) { f.port ^= 1 << 9 },
		"PSN before":    func(_ *guarded, f *forgery) { f.PSN = wire.PSNAdd(f.PSN, -5000) },
		"PSN behind":    func(_ *guarded, f *forgery) { f.PSN = wire.PSNAdd(f.PSN, 5000) },
		"sign":          func(_ *guarded, f *forgery) { f.MSN, f.PSN = f.MSN^1, f.PSN^uint32(btoi(f.Opcode == wire.CNP)) },
	}
	for name, e := range effects {
		for _, field := range slices.Sorted(maps.Keys(wrong)) {
			if field == "sign" && e.op == wire.RCWriteOnly {
				continue
			}
			t.Run(name+"/"+field, func(t *testing.T) {
				g := newGuarded(t, true)
				g.talk()
				g.hold()
				f := g.genuine(e.op)
				e.do(f)
				wrong[field](g, f)
				before, drops := g.trace(), g.dropped()
				g.send(f)
				g.run(10*time.Microsecond, nil)
				if field == "nothing" {
					require.NotEqual(t, before, g.trace(), "it would have no effect anyway")
					return
				}
				require.Equal(t, before, g.trace())
				stale := e.op == wire.RCAcknowledge && field == "PSN before" // as one that comes twice
				require.EqualValues(t, 1-btoi(stale), g.dropped()-drops)
			})
		}
	}
}

func (g *guarded) dropped() uint64 {
	s := g.nodes[0].dev.Stats()
	return s.DropNoQP + s.DropSource + s.DropKey + s.DropUnexpected + s.DropRefused
}

// Whatever one packet can do to a connection takes 60 bits to guess, however
// small its packets are. docs/SECURITY.md has the table.
func TestGuardBits(t *testing.T) {
	const qpn, partition = 24, 15
	for _, mtu := range []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096} {
		for name, e := range effects {
			bits := qpn + partition + bitsOf(sourcePorts) + e.bits(&qp{mtu: mtu.Bytes()})
			t.Logf("%s, path MTU %d: %.0f bits", name, mtu.Bytes(), bits)
			require.GreaterOrEqual(t, bits, 60.0, name)
		}
	}
	// The first packet of a peer: no port yet, and answers to little.
	require.GreaterOrEqual(t, qpn+partition+24-bitsOf(firstPackets), 60.0)
	require.GreaterOrEqual(t, qpn+partition+signedBits(&qp{mtu: 256}), 60.0)
}

// Of a peer that has told nothing of itself only its port is known.
func TestGuardAlone(t *testing.T) {
	g := newGuarded(t, false)
	g.talk()
	g.hold()
	for name, change := range map[string]func(f *forgery){
		"port":         func(f *forgery) { f.port++ },
		"partition":    func(f *forgery) { f.PKey = 0x8123 },
		"notification": func(f *forgery) { f.Opcode, f.payload = wire.CNP, nil },
		"far ahead":    func(f *forgery) { f.PSN = wire.PSNAdd(f.PSN, maxWindow/1024) },
		"far behind":   func(f *forgery) { f.PSN = wire.PSNAdd(f.PSN, -maxWindow/1024-1) },
	} {
		f := g.genuine(wire.RCWriteOnly)
		change(f)
		before, drops := g.trace(), g.dropped()
		g.send(f)
		g.run(10*time.Microsecond, nil)
		require.Equal(t, before, g.trace(), name)
		require.EqualValues(t, 1, g.dropped()-drops, name)
	}
	f := g.genuine(wire.RCWriteOnly)
	f.ce = true
	g.send(f)
	g.run(10*time.Microsecond, nil)
	require.Zero(t, g.nodes[0].dev.Stats().SentCNPs, "it has not asked for them")
	require.EqualValues(t, 0xee, g.mrs[0].Bytes()[0])
}

// Before the peer was heard only its first packets are believed, and where they
// come from is where all others have to.
func TestGuardFirstPacket(t *testing.T) {
	g := newGuarded(t, true)
	for _, ahead := range []int{-1, firstPackets, 100} {
		f := g.genuine(wire.RCWriteOnly)
		f.PSN = wire.PSNAdd(f.PSN, ahead)
		before := g.trace()
		g.send(f)
		g.run(time.Microsecond, nil)
		require.Equal(t, before, g.trace(), "%d ahead", ahead)
	}
	f := g.genuine(wire.RCWriteOnly)
	f.PSN = wire.PSNAdd(f.PSN, firstPackets-1)
	f.port = 0xffff
	g.send(f)
	g.run(time.Microsecond, nil)
	require.EqualValues(t, 1, g.nodes[0].dev.Stats().SentNAKs, "the first proof was lost")
	require.Zero(t, g.qps[0].guard.port, "a packet that is not executed says nothing")
	g.talk()
	require.Equal(t, g.genuine(wire.CNP).port, g.qps[0].guard.port)
	require.NotZero(t, g.qps[1].guard.port)
}

// A request that fits all but what it asks for is dropped: the connection goes
// on, and the one that was due is executed.
func TestGuardRefuses(t *testing.T) {
	for name, change := range map[string]func(g *guarded, f *forgery){
		"key":          func(_ *guarded, f *forgery) { f.RKey ^= 1 },
		"address":      func(_ *guarded, f *forgery) { f.VA += guardedSize },
		"length":       func(_ *guarded, f *forgery) { f.Length++ },
		"whole length": func(_ *guarded, f *forgery) { f.Length = 1 << 31 },
		"middle":       func(_ *guarded, f *forgery) { f.Opcode = wire.RCWriteMiddle },
		"end":          func(_ *guarded, f *forgery) { f.Opcode = wire.RCWriteLastImm },
		"short first":  func(_ *guarded, f *forgery) { f.Opcode = wire.RCWriteFirst },
		"send":         func(_ *guarded, f *forgery) { f.Opcode = wire.RCSendOnly },
		"empty send":   func(_ *guarded, f *forgery) { f.Opcode, f.payload = wire.RCSendOnlyInv, nil },
		"read":         func(_ *guarded, f *forgery) { f.Opcode, f.payload = wire.RCReadRequest, nil },
		"atomic":       func(_ *guarded, f *forgery) { f.Opcode, f.payload = wire.RCFetchAdd, nil },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t, true)
			g.talk()
			before := g.trace()
			for range 3 {
				f := g.genuine(wire.RCWriteOnly)
				change(g, f)
				g.send(f)
				g.run(time.Millisecond, nil)
			}
			require.Equal(t, before, g.trace())
			require.EqualValues(t, 3, g.nodes[0].dev.Stats().DropRefused)
			require.True(t, Refused(g.qps[0]))
			g.talk()
			require.False(t, Refused(g.qps[0]), "it was not the peer's")
		})
	}
}

// A peer that breaks the rules itself gets no answer and gives up. The device
// that refused knows that it was the peer when that says so.
func TestGuardConvicts(t *testing.T) {
	g := newGuarded(t, true)
	g.talk()
	g.write(1, 100, g.mrs[0].RKey()^1)
	g.must(time.Minute, "the peer gives up", func() bool { return len(g.wcs[1]) > 0 })
	require.Equal(t, verbs.WCRetryExcErr, g.wcs[1][0].Status)
	require.Equal(t, verbs.QPSErr, g.qps[1].State())
	require.Equal(t, verbs.QPSRTS, g.qps[0].State())
	require.True(t, Refused(g.qps[0]))
	require.Zero(t, g.nodes[0].dev.Stats().QPErrors)
}

func TestProtect(t *testing.T) {
	g := newGuarded(t, true)
	require.ErrorIs(t, Protect(g.qps[0], Guard{}), verbs.ErrState, "not when it is connected")
	require.ErrorIs(t, Protect(nil, Guard{}), verbs.ErrState)
	require.False(t, Refused(nil))
	for _, k := range []uint16{1, 0x7fff, 0x8000, 0xffff} {
		require.False(t, ValidPartition(k), "%#x", k)
	}
	require.True(t, ValidPartition(0x8001) && ValidPartition(0xfffe))
	require.NoError(t, g.qps[0].Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	require.Zero(t, g.qps[0].guard)
	require.NoError(t, verbs.Init(g.qps[0], verbs.AccessRemoteWrite|verbs.AccessLocalWrite))
	require.ErrorIs(t, Protect(g.qps[0], Guard{Own: 5, Peer: 0x8005}), verbs.ErrInvalid)
}

// Ports, marks and windows do not get in the way of the peer, whatever the
// network does; one that loses more makes a queue pair give up, see TestFutile.
func TestGuardBadNetwork(t *testing.T) {
	for seed := range uint64(6) {
		for _, agreed := range []bool{true, false} {
			w := newSimWorld(t, seed)
			rng := rand.New(rand.NewPCG(seed, 9))
			nodes := [2]*simNode{}
			for i, addr := range modelAddrs[true] {
				nodes[i] = w.open(addr, func(c *Config) { c.Vectors, c.ECN = 3, agreed })
			}
			w.net.both(nodes[0].addr, nodes[1].addr, func(r *simRoute) {
				r.simFaults = simFaults{
					loss: rng.Float64() * 0.02, burst: 1 + rng.IntN(5), duplicate: 0.02, reorder: 0.02, late: time.Millisecond,
					mark: rng.Float64() * 0.05, corrupt: 0.01,
				}
			})
			mtu := []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096}[seed%3]
			b := newBulkOf(nodes[0], nodes[1], bulkSize, bulkDepth, mtu, 0, func(qps [2]verbs.QP) { protect(t, qps, agreed) })
			w.must(time.Minute, "the transfer", func() bool { return b.bytes > 8<<20 })
			require.Zero(t, nodes[1].dev.Stats().DropRefused)
			require.Equal(t, agreed, nodes[0].dev.Stats().CNPs > 0)
		}
	}
}
