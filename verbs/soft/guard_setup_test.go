package soft

import (
	"bytes"
	"crypto/sha256"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// guarded is a connection between two devices as gateways make it, and a third
// host that sends with the address of the second one.
type guarded struct {
	*simWorld
	t     *testing.T
	nodes [2]*simNode
	qps   [2]*qp
	mrs   [2]verbs.MR
	cqs   [2]verbs.CQ
	wcs   [2][]verbs.WC
}

const guardedSize = 64 << 10

// newGuarded connects; agreed says that both ends have keys.
func newGuarded(t *testing.T, agreed bool) *guarded {
	g := &guarded{simWorld: newSimWorld(t, 1), t: t}
	for i, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		n := g.open(addr, func(c *Config) { c.Vectors, c.ECN = 2, true })
		g.nodes[i] = n
		g.qps[i], g.cqs[i], g.mrs[i] = n.end(i, guardedSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1})
		for range 64 {
			require.NoError(t, g.qps[i].PostRecv(&verbs.RecvWR{}))
		}
		n.loops[i].turn = append(n.loops[i].turn, func() bool { return g.poll(i) })
	}
	protect(t, [2]verbs.QP{g.qps[0], g.qps[1]}, agreed)
	psn := [2]uint32{RandomPSN(), RandomPSN()}
	for i, p := range g.qps {
		require.NoError(t, verbs.Connect(p, verbs.QPAttr{
			DestQPNum: g.qps[1-i].num, RQPSN: psn[1-i], SQPSN: psn[i], PathMTU: verbs.MTU1024,
			AH:          verbs.AHAttr{DGID: verbs.GIDOf(g.nodes[1-i].addr), Port: 1, HopLimit: 64},
			MinRNRTimer: 12, Timeout: 10, RetryCnt: 3, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
		}))
	}
	return g
}

// protect guards the two ends of a connection.
func protect(t require.TestingT, qps [2]verbs.QP, agreed bool) {
	var keys [2]uint16
	if agreed {
		keys = [2]uint16{RandomPartition(), RandomPartition()}
	}
	for i, p := range qps {
		require.NoError(t, Protect(p, Guard{Own: keys[i], Peer: keys[1-i]}))
	}
}

func (g *guarded) poll(i int) bool {
	var wcs [16]verbs.WC
	n, err := g.cqs[i].Poll(wcs[:])
	require.NoError(g.t, err)
	g.wcs[i] = append(g.wcs[i], wcs[:n]...)
	return n > 0
}

// write posts a WRITE of n bytes from one end to the other.
func (g *guarded) write(from, n int, key uint32) {
	require.NoError(g.t, g.qps[from].PostSend(&verbs.SendWR{
		Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{{Addr: g.mrs[from].Addr(), Length: uint32(n), LKey: g.mrs[from].LKey()}},
		RemoteAddr: g.mrs[1-from].Addr(), RKey: key,
	}))
}

// talk has both ends say something, after which they know each other's ports.
func (g *guarded) talk() {
	for from := range g.qps {
		g.write(from, 100, g.mrs[1-from].RKey())
	}
	g.must(time.Second, "both have an answer", func() bool { return len(g.wcs[0]) > 0 && len(g.wcs[1]) > 0 })
	g.wcs = [2][]verbs.WC{}
}

// hold has end 0 send packets that do not arrive, so that many are under way.
func (g *guarded) hold() {
	g.net.route(g.nodes[0].addr, g.nodes[1].addr).tap = func(netip.AddrPort, []byte) simVerdict { return simDrop }
	g.write(0, 16<<10, g.mrs[1].RKey())
	g.run(100*time.Microsecond, nil)
	require.EqualValues(g.t, 16, wire.PSNDiff(g.qps[0].req.high, g.qps[0].req.una))
}

// forgery is a packet to end 0 with everything right that its opcode has.
type forgery struct {
	wire.Header
	port    uint16
	ce      bool
	payload []byte
}

// genuine is what the peer would send.
func (g *guarded) genuine(op wire.Opcode) *forgery {
	q := g.qps[0]
	f := &forgery{port: q.guard.port}
	if f.port == 0 {
		f.port = 0xc000 | uint16(g.qps[1].vec.index)<<4 | uint16(q.num&(lanes-1))
	}
	f.Header = wire.Header{
		Opcode: op, Migrated: true, AckReq: true, PKey: g.qps[1].guard.partition(), DestQP: q.num, PSN: q.resp.psn,
		VA: g.mrs[0].Addr(), RKey: g.mrs[0].RKey(),
	}
	switch {
	case op == wire.CNP:
		f.PSN = g.qps[1].sign(0)
	case op.Traits()&wire.Response != 0:
		f.PSN, f.Syndrome, f.MSN = wire.PSNAdd(q.req.una, 4), wire.ACK, g.qps[1].sign(1)
	default:
		f.payload = bytes.Repeat([]byte{0xee}, 64)
		f.Length = uint32(len(f.payload))
	}
	return f
}

// send has the third host send it.
func (g *guarded) send(f *forgery) {
	from := netip.AddrPortFrom(g.nodes[1].addr, f.port)
	b := f.Append(nil, len(f.payload))
	n := len(b)
	b = append(append(b, f.payload...), make([]byte, wire.Pad(len(f.payload)))...)
	icrc := wire.NewICRC(wire.Flow{Src: from.Addr(), Dst: g.nodes[0].addr, SrcPort: f.port, DstPort: verbs.RoCEUDPPort})
	state := wire.Update(icrc.Begin(0, len(b)+wire.ICRCLen, b[:n]), b[n:])
	g.net.arrive(from, simSocket(g.nodes[0]), f.ce, wire.AppendICRC(b, state))
}

// trace is all that a packet to end 0 could have an effect on.
type trace struct {
	stats     Stats
	state     verbs.QPState
	expected  uint32
	una, next uint32
	window    float64
	status    int
	memory    [sha256.Size]byte
}

func (g *guarded) trace() trace {
	q := g.qps[0]
	t := trace{
		stats: g.nodes[0].dev.Stats(), state: q.state, expected: q.resp.psn, una: q.req.una, next: q.next(),
		window: q.req.cc.window, status: len(g.wcs[0]), memory: sha256.Sum256(g.mrs[0].Bytes()),
	}
	s := &t.stats
	s.RxPackets, s.RxBytes, s.RxCalls = 0, 0, 0
	s.DropNoQP, s.DropSource, s.DropKey, s.DropUnexpected, s.DropRefused = 0, 0, 0, 0, 0
	return t
}

// bitsOf is how many bits a choice among n is.
func bitsOf(n int) float64 { return math.Log2(float64(n)) }
