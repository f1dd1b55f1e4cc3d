package resolution

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// A model of two datagram sockets and what is between them: UDP and UD datagrams are lost, late and doubled, the sockets
// are started again with other queue pairs, UD does not get through. The network and the clock are a simulation.

// dgramKind is what a socket of the model is.
type dgramKind int

const (
	kindOurs   dgramKind = iota // with a device
	kindStock                   // a stock rsocket: no probes, queue pairs are used at once and for ever
	kindNoDev                   // ours without a device
	kindNative                  // a UDP socket
)

func (k dgramKind) String() string {
	return [...]string{"ours", "stock", "without device", "native"}[k]
}

type dgramSim struct {
	t       require.TestingT
	rand    *rand.Rand
	now     time.Time
	queue   []dgramPacket
	nodes   map[netip.AddrPort]*dgramNode
	loss    float64
	dup     float64
	late    time.Duration
	udBlock bool
	udMost  int            // larger messages do not get through; 0: all do
	slow    time.Duration  // how long an address handle takes
	barren  float64        // the share of handles that cannot be made
	sent    map[string]int // copies of each payload under way or delivered
}

type dgramPacket struct {
	at       time.Time
	from, to netip.AddrPort
	ud       bool
	qpn, src uint32
	control  Control
	size     int // of the probe that is echoed
	data     []byte
	made     func() // nil: a datagram
}

// dgramNode is a socket of the model. Its handles are of the fake below.
type dgramNode struct {
	sim     *dgramSim
	kind    dgramKind
	addr    netip.AddrPort
	own     uint32
	table   *Table
	handles int
	got     []string
	viaUD   int
	answers int
	asks    int
	probes  int
	stock   map[netip.AddrPort]uint32
}

type fakeHandle struct {
	n    *dgramNode
	to   netip.Addr
	done bool
}

func (h *fakeHandle) Attr() verbs.AHAttr { return verbs.AHAttr{DGID: verbs.GIDOf(h.to)} }
func (h *fakeHandle) Close() error {
	require.False(h.n.sim.t, h.done, "handle closed twice")
	h.done = true
	h.n.handles--
	return nil
}

func (n *dgramNode) Path(local netip.Addr, _ netip.AddrPort) Path {
	if !local.IsValid() {
		local = n.addr.Addr()
	}
	return Path{Dev: min(0, int(n.own)-1), Source: local, Most: dgramMost}
}

func (n *dgramNode) QPN(dev int) uint32 {
	if dev != 0 {
		return 0
	}
	return n.own
}

// make makes a handle, which takes its time; the socket may have been started again by then.
func (n *dgramNode) make(w *Want) {
	if w == nil {
		return
	}
	table := n.table
	require.True(n.sim.t, table.Wanted(w))
	n.sim.queue = append(n.sim.queue, dgramPacket{at: n.sim.now.Add(n.sim.slow), to: n.addr, made: func() {
		if n.sim.rand.Float64() < n.sim.barren {
			require.Zero(n.sim.t, table.Made(n.sim.now, w, nil, verbs.ErrInvalid))
		} else {
			n.handles++
			ev := table.Made(n.sim.now, w, &fakeHandle{n: n, to: w.Addr.Addr()}, nil)
			n.probe(ev.Peer, w.Addr, ev.Probe)
		}
		require.False(n.sim.t, table.Wanted(w))
	}})
}

func newDgramSim(t require.TestingT, seed uint64) *dgramSim {
	return &dgramSim{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0),
		nodes: map[netip.AddrPort]*dgramNode{}, sent: map[string]int{},
	}
}

func (s *dgramSim) add(kind dgramKind, addr string) *dgramNode {
	n := &dgramNode{sim: s, kind: kind, addr: ap(addr)}
	s.nodes[n.addr] = n
	n.restart()
	return n
}

// restart makes the socket forget everything; its queue pair is another.
func (n *dgramNode) restart() {
	if n.table != nil {
		n.table.Clear()
		require.Zero(n.sim.t, n.handles, "handles leak")
	}
	n.own = 0
	if n.kind == kindOurs || n.kind == kindStock {
		n.own = 1 + n.sim.rand.Uint32N(0xffffff-1)
	}
	n.table = New(n, 4, n.kind == kindNative)
	n.stock = map[netip.AddrPort]uint32{}
}

// put gives a datagram to the network.
func (s *dgramSim) put(p dgramPacket) {
	copies := 1
	switch r := s.rand.Float64(); {
	case r < s.loss, p.ud && s.udBlock, p.ud && s.udMost > 0 && len(p.data) > s.udMost:
		return
	case r > 1-s.dup:
		copies = 2
	}
	for range copies {
		q := p
		q.data = slices.Clone(p.data)
		q.at = s.now.Add(time.Millisecond + time.Duration(s.rand.Float64()*float64(s.late)))
		s.queue = append(s.queue, q)
	}
}

// run delivers what arrives during d.
func (s *dgramSim) run(d time.Duration) {
	end := s.now.Add(d)
	for {
		first := -1
		for i := range s.queue {
			if !s.queue[i].at.After(end) && (first < 0 || s.queue[i].at.Before(s.queue[first].at)) {
				first = i
			}
		}
		if first < 0 {
			s.now = end
			return
		}
		p := s.queue[first]
		s.queue = slices.Delete(s.queue, first, first+1)
		s.now = p.at
		switch n := s.nodes[p.to]; {
		case p.made != nil:
			p.made()
		case n != nil:
			n.receive(&p)
		}
	}
}

func (n *dgramNode) udp(to netip.AddrPort, b []byte) {
	n.sim.put(dgramPacket{from: n.addr, to: to, data: b})
}

func (n *dgramNode) header(op rsocket.ResolveOp) []byte {
	return rsocket.ResolveHeader{Op: op, QPN: n.own, Probes: n.kind == kindOurs, Addr: n.addr.Addr()}.Append(nil)
}

// dgramMost is the size of the largest message of the model's devices.
const dgramMost = 500

func (n *dgramNode) ud(to netip.AddrPort, qpn uint32, control Control, size int, payload []byte) {
	n.sim.put(dgramPacket{
		from: n.addr, to: to, ud: true, qpn: qpn, src: n.own, control: control, size: size,
		data: append(rsocket.DatagramHeader{Source: n.addr}.Append(nil), payload...),
	})
}

func (n *dgramNode) send(to netip.AddrPort, payload string) {
	switch n.kind {
	case kindNative:
		n.udp(to, []byte(payload))
		return
	case kindStock:
		if qpn, ok := n.stock[to]; ok {
			n.ud(to, qpn, 0, 0, []byte(payload))
			return
		}
		n.udp(to, append(n.header(rsocket.ResolveData), payload...))
		return
	default:
	}
	d := n.table.Send(n.sim.now, to)
	switch d.Way {
	case Plain:
		n.udp(to, []byte(payload))
	case Data:
		n.asks++
		require.Equal(n.sim.t, n.own, d.QPN)
		n.udp(to, append(n.header(rsocket.ResolveData), payload...))
	case UD:
		n.viaUD++
		n.toPeer(d.Peer, to, 0, 0, payload)
	}
	n.probe(d.Peer, to, d.Probe)
	require.LessOrEqual(n.sim.t, len(n.table.known), 4)
}

func (n *dgramNode) probe(p PeerQP, to netip.AddrPort, size int) {
	if size > 0 {
		n.probes++
		n.toPeer(p, to, Probe, 0, string(make([]byte, max(0, size-rsocket.DatagramHeader4Len))))
	}
}

func (n *dgramNode) toPeer(p PeerQP, to netip.AddrPort, control Control, size int, payload string) {
	require.False(n.sim.t, p.Handle.(*fakeHandle).done, "closed handle used")
	require.Equal(n.sim.t, to.Addr(), p.Handle.(*fakeHandle).to)
	require.NotZero(n.sim.t, p.QPN)
	n.ud(to, p.QPN, control, size, []byte(payload))
}

func (n *dgramNode) receive(p *dgramPacket) {
	if p.ud && (n.own == 0 || p.qpn != n.own) {
		return
	}
	switch {
	case n.kind == kindNative:
		n.got = append(n.got, string(p.data))
	case n.kind == kindStock:
		n.receiveStock(p)
	case p.ud:
		h, payload, err := rsocket.ParseDatagramHeader(p.data)
		require.NoError(n.sim.t, err)
		m := Message{QPN: p.src, From: h.Source, Local: n.addr.Addr(), Control: p.control, Size: p.size}
		if p.control == Probe {
			m.Size = len(p.data)
		}
		ev := n.table.ReceiveUD(n.sim.now, &m)
		if p.control == 0 {
			n.got = append(n.got, string(payload))
		}
		if ev.Echo > 0 {
			n.toPeer(ev.Peer, p.from, Echo, ev.Echo, "")
		}
		n.probe(ev.Peer, p.from, ev.Probe)
	default:
		ev := n.table.ReceiveUDP(n.sim.now, p.from, n.addr.Addr(), p.data)
		if ev.Payload != nil {
			n.got = append(n.got, string(ev.Payload))
		}
		if ev.Answer {
			n.answers++
			require.Equal(n.sim.t, n.own, ev.QPN)
			n.udp(p.from, n.header(rsocket.ResolveCtrl))
		}
		n.probe(ev.Peer, p.from, ev.Probe)
		n.make(ev.Want)
	}
	if n.table != nil {
		require.LessOrEqual(n.sim.t, n.handles, len(n.table.known))
	}
}

// receiveStock is what rdma-core does (RS udp_svc_process_rs, ds_recvfrom).
func (n *dgramNode) receiveStock(p *dgramPacket) {
	if p.ud {
		require.Zero(n.sim.t, p.control, "a stock rsocket was sent what it does not know")
		_, payload, err := rsocket.ParseDatagramHeader(p.data)
		require.NoError(n.sim.t, err)
		n.got = append(n.got, string(payload))
		return
	}
	h, payload, err := rsocket.ParseResolveHeader(p.data)
	if err != nil {
		return
	}
	if h.Op == rsocket.ResolveData {
		n.udp(p.from, n.header(rsocket.ResolveCtrl))
		n.got = append(n.got, string(payload))
	}
	n.stock[p.from] = h.QPN
}

// sendNext sends datagram i to a node. Its payload names sender, receiver and number.
func (n *dgramNode) sendNext(to *dgramNode, i int) string {
	s := fmt.Sprintf("%v>%v#%d", n.addr, to.addr, i)
	n.send(to.addr, s)
	return s
}

// everything is delivered once the network is good, whatever happened before.
func (s *dgramSim) heal() { s.loss, s.dup, s.late, s.slow, s.barren = 0, 0, 0, 0, 0 }

func TestResolutionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newDgramSim(t, rapid.Uint64().Draw(t, "seed"))
		kind := rapid.SampledFrom([]dgramKind{kindOurs, kindOurs, kindStock, kindNoDev})
		a := s.add(kindOurs, "10.0.0.1:1000")
		b := s.add(kind.Draw(t, "peer"), "10.0.0.2:2000")
		others := []netip.AddrPort{ap("10.0.0.2:2001"), ap("10.0.0.2:2002"), ap("10.0.0.3:2000"), ap("10.0.0.4:2000"), ap("10.0.0.5:2000")}
		all := map[string]bool{}
		i := 0
		step := func(from, to *dgramNode) string {
			i++
			p := from.sendNext(to, i)
			all[p] = true
			return p
		}
		t.Repeat(map[string]func(*rapid.T){
			"faults": func(t *rapid.T) {
				s.loss = rapid.SampledFrom([]float64{0, 0, 0.1, 0.5}).Draw(t, "loss")
				s.dup = rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "dup")
				s.late = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second}).Draw(t, "late")
			},
			"handles": func(t *rapid.T) {
				s.slow = rapid.SampledFrom([]time.Duration{0, time.Millisecond, 3 * time.Second}).Draw(t, "slow")
				s.barren = rapid.SampledFrom([]float64{0, 0, 0.5, 1}).Draw(t, "barren")
			},
			"block": func(t *rapid.T) {
				if b.kind != kindStock {
					s.udBlock = rapid.Bool().Draw(t, "block")
				}
			},
			"a": func(*rapid.T) { step(a, b) },
			"b": func(*rapid.T) { step(b, a) },
			"burst": func(*rapid.T) {
				for range 20 {
					step(a, b)
					s.run(10 * time.Millisecond)
				}
			},
			"restart a": func(t *rapid.T) {
				if b.kind != kindStock { // which never asks again
					a.restart()
				}
			},
			"restart b":  func(*rapid.T) { b.restart() },
			"other":      func(t *rapid.T) { a.send(rapid.SampledFrom(others).Draw(t, "to"), "nobody") },
			"wait":       func(*rapid.T) { s.run(100 * time.Millisecond) },
			"wait long":  func(*rapid.T) { s.run(time.Minute) },
			"switch b":   func(t *rapid.T) { switchKind(t, b) },
			"a's device": func(*rapid.T) { a.own = 0 },
			"": func(t *rapid.T) {
				for _, n := range []*dgramNode{a, b} {
					for _, p := range n.got {
						require.Contains(t, all, p, "invented")
						require.Contains(t, p, ">"+n.addr.String()+"#", "delivered to the wrong socket")
					}
				}
			},
		})
		copies := map[string]int{}
		for _, p := range append(slices.Clone(a.got), b.got...) {
			copies[p]++
			require.LessOrEqual(t, copies[p], 2, "%s: more than the network made", p)
		}
		if a.own == 0 && b.kind == kindStock {
			return // no way back from there, see ResolveHeader.QPN
		}
		s.heal()
		s.run(4 * time.Second) // what is under way arrives
		both := rapid.Bool().Draw(t, "both talk")
		for range 80 {
			step(a, b)
			s.run(50 * time.Millisecond)
			if both {
				step(b, a)
			}
			s.run(50 * time.Millisecond)
		}
		a.got, b.got = nil, nil
		a.viaUD, a.asks, a.answers, a.probes = 0, 0, 0, 0
		var toA, toB []string
		for range 50 {
			toB = append(toB, step(a, b))
			s.run(50 * time.Millisecond)
			if both {
				toA = append(toA, step(b, a))
			}
			s.run(50 * time.Millisecond)
		}
		s.run(time.Second)
		require.Equal(t, toA, a.got, "to a from %v", b.kind)
		require.Equal(t, toB, b.got, "to b, %v", b.kind)
		switch {
		case a.own == 0 || b.own == 0 || s.udBlock:
			require.Zero(t, a.viaUD)
		case both:
			require.Equal(t, len(toB), a.viaUD, "not carried by the queue pairs")
			require.Zero(t, a.asks+a.answers+a.probes)
		default:
			require.InDelta(t, len(toB)-5, a.viaUD, 2, "not carried by the queue pairs")
		}
		require.LessOrEqual(t, a.answers, 50)
		require.LessOrEqual(t, a.probes, 15)
	})
}

// switchKind starts another program at the peer's address.
func switchKind(t *rapid.T, b *dgramNode) {
	if b.kind == kindStock {
		return
	}
	b.kind = rapid.SampledFrom([]dgramKind{kindOurs, kindNoDev}).Draw(t, "kind")
	b.restart()
}

// One direction only: what is sent arrives, by the queue pairs but for one question a second.
func TestResolutionOneWay(t *testing.T) {
	for _, kind := range []dgramKind{kindOurs, kindStock} {
		s := newDgramSim(t, 1)
		a, b := s.add(kindOurs, "[fd00::1]:1000"), s.add(kind, "[fd00::2]:2000")
		var want []string
		for i := range 1000 {
			want = append(want, a.sendNext(b, i))
			s.run(10 * time.Millisecond)
		}
		require.Equal(t, want, b.got)
		require.InDelta(t, 10, a.asks, 3, "%v", kind)
	}
}

// Where queue pairs do not reach each other, or only small messages get through, nothing is lost for it.
func TestResolutionBlocked(t *testing.T) {
	for name, block := range map[string]func(s *dgramSim){
		"all":   func(s *dgramSim) { s.udBlock = true },
		"large": func(s *dgramSim) { s.udMost = dgramMost - 1 },
	} {
		s := newDgramSim(t, 1)
		block(s)
		a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
		var want []string
		for i := range 1000 {
			want = append(want, a.sendNext(b, i))
			s.run(10 * time.Millisecond)
			b.sendNext(a, i)
		}
		require.Equal(t, want, b.got, name)
		require.Zero(t, a.viaUD+b.viaUD)
		require.Less(t, a.probes, 20)
	}
}

// A message with a forged source makes us send no more to that source than a short answer.
func TestResolutionNoAmplifier(t *testing.T) {
	s := newDgramSim(t, 1)
	a := s.add(kindOurs, "10.0.0.1:1000")
	for op, answers := range map[rsocket.ResolveOp]int{rsocket.ResolveData: 1, rsocket.ResolveCtrl: 0} {
		for port := range uint16(100) {
			h := rsocket.ResolveHeader{Op: op, QPN: 5, Probes: true, Addr: netip.MustParseAddr("10.0.0.9")}
			a.answers = 0
			a.receive(&dgramPacket{from: netip.AddrPortFrom(h.Addr, 1000+port), data: h.Append(nil)})
			s.run(0)
			require.Equal(t, answers, a.answers)
			require.Zero(t, a.probes)
		}
	}
}

// A native UDP program answers without a header, and from then on gets none.
func TestResolutionNativePeer(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindNative, "10.0.0.2:2000")
	b.send(a.addr, "request")
	s.run(time.Second)
	require.Equal(t, []string{"request"}, a.got)
	a.send(b.addr, "answer")
	s.run(time.Second)
	require.Equal(t, []string{"answer"}, b.got)
	require.Zero(t, a.handles+a.asks+a.answers)
	b.kind = kindOurs // now an rsocket is started there
	b.restart()
	b.send(a.addr, "hello")
	s.run(time.Second)
	for range 3 {
		a.send(b.addr, "welcome")
		s.run(time.Second)
	}
	require.Equal(t, []string{"answer", "welcome", "welcome", "welcome"}, b.got)
	require.Positive(t, a.viaUD)
}

// Configured so, a peer gets no header before it has sent one.
func TestResolutionPlainFirst(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindNative, "10.0.0.2:2000")
	a.table = New(a, 4, true)
	a.send(b.addr, "x")
	s.run(time.Second)
	require.Equal(t, []string{"x"}, b.got)
}

// A stock rsocket that was started again has another queue pair and says nothing.
func TestResolutionStockRestart(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindStock, "10.0.0.2:2000")
	run := func(n int) (lost int) {
		b.got = nil
		for i := range n {
			a.sendNext(b, i)
			s.run(100 * time.Millisecond)
		}
		return n - len(b.got)
	}
	require.Zero(t, run(30))
	b.restart()
	lost := run(30)
	require.Positive(t, lost)
	require.LessOrEqual(t, lost, int(RefreshAfter/(100*time.Millisecond))+1)
	require.Zero(t, run(30))
}

// talk lets two sockets talk until both know all of each other.
func (s *dgramSim) talk(a, b *dgramNode) {
	for i := range 5 {
		a.sendNext(b, i)
		s.run(10 * time.Millisecond)
		b.sendNext(a, i)
		s.run(10 * time.Millisecond)
	}
	require.Equal(s.t, destResolved, a.table.known[b.addr].state)
	a.asks, a.viaUD, b.got = 0, 0, nil
}

// While a handle is being made everything goes over UDP. One that comes after the peer's next start is closed.
func TestResolutionSlowHandle(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
	s.slow = time.Second
	run := func(d time.Duration) (viaUD int) {
		before := a.viaUD
		for end := s.now.Add(d); s.now.Before(end); {
			a.sendNext(b, 1)
			s.run(10 * time.Millisecond)
		}
		return a.viaUD - before
	}
	require.Zero(t, run(500*time.Millisecond))
	require.Len(t, b.got, 50)
	b.restart()
	require.Zero(t, run(900*time.Millisecond))
	require.Zero(t, a.handles, "of the queue pair that is gone")
	require.Len(t, b.got, 140)
	require.Positive(t, run(time.Second))
	require.Equal(t, 1, a.handles)
	require.EqualValues(t, 1, a.table.Stats.Resolved)
	require.Len(t, b.got, 240)
}

// A peer whose handle cannot be made is reached over UDP, and the next message from there asks for the handle again.
func TestResolutionNoHandle(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
	s.barren = 1
	for i := range 10 {
		a.sendNext(b, i)
		s.run(100 * time.Millisecond)
	}
	require.Len(t, b.got, 10)
	require.Zero(t, a.viaUD)
	require.EqualValues(t, 10, a.table.Stats.Unresolvable)
	s.heal()
	s.talk(a, b)
}

// A peer that writes to another address of ours is answered from there, by a handle for that address.
func TestResolutionMove(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
	s.talk(a, b)
	other := netip.MustParseAddr("10.0.0.7")
	require.Zero(t, a.table.ReceiveUD(s.now, &Message{From: b.addr, QPN: b.own, Local: other}))
	require.Zero(t, a.handles)
	d := a.table.Send(s.now, b.addr)
	require.Equal(t, Data, d.Way)
	require.Equal(t, other, d.Path.Source)
	first := a.table.ReceiveUDP(s.now, b.addr, other, b.header(rsocket.ResolveData)).Want
	require.Equal(t, other, first.Path.Source)
	a.make(first)
	second := a.table.ReceiveUDP(s.now, b.addr, a.addr.Addr(), b.header(rsocket.ResolveData)).Want
	require.Equal(t, a.addr.Addr(), second.Path.Source)
	require.False(t, a.table.Wanted(first))
	require.Nil(t, a.table.ReceiveUDP(s.now, b.addr, a.addr.Addr(), b.header(rsocket.ResolveData)).Want, "one at a time")
	a.make(second)
	s.run(time.Second)
	require.Equal(t, 1, a.handles)
	s.talk(a, b)
}

// A message from another queue pair than the one we know: another socket may be there, so we ask, once a second at
// most.
func TestResolutionSuspect(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
	s.talk(a, b)
	for i := range 500 {
		a.table.ReceiveUD(s.now, &Message{From: b.addr, QPN: b.own + 1})
		a.sendNext(b, i)
		s.run(5 * time.Millisecond)
		b.sendNext(a, i)
		s.run(5 * time.Millisecond)
	}
	require.InDelta(t, 5, a.asks, 1)
	require.Len(t, b.got, 500)
}

// What was known is doubted after a pause.
func TestResolutionStale(t *testing.T) {
	s := newDgramSim(t, 1)
	a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindOurs, "10.0.0.2:2000")
	s.talk(a, b)
	s.run(staleAfter - time.Second)
	a.sendNext(b, 1)
	require.Zero(t, a.asks)
	s.run(time.Millisecond)
	b.sendNext(a, 1)
	s.run(staleAfter + time.Second)
	b.restart()
	b.got = nil
	a.sendNext(b, 2)
	s.run(time.Second)
	require.Len(t, b.got, 1)
}

// A peer that does not answer is given up; it may come back as whatever it likes.
func TestResolutionUnanswered(t *testing.T) {
	for _, kind := range []dgramKind{kindOurs, kindStock} {
		s := newDgramSim(t, 1)
		a, b := s.add(kindOurs, "10.0.0.1:1000"), s.add(kind, "10.0.0.2:2000")
		s.talk(a, b)
		delete(s.nodes, b.addr)
		for i := range 500 {
			a.sendNext(b, i)
			s.run(10 * time.Millisecond)
		}
		require.InDelta(t, (RefreshAfter+AnswerTime)/(10*time.Millisecond), a.viaUD, 3)
		require.EqualValues(t, 1, a.table.Stats.Lost)
		s.nodes[b.addr] = b
		b.restart()
		a.sendNext(b, 1000)
		s.run(10 * time.Millisecond)
		require.Len(t, b.got, 1)
	}
}

// A peer without a queue pair is told of none, and no peer is told of one that does not exist: a stock peer would send
// to it.
func TestResolutionNoQueuePair(t *testing.T) {
	s := newDgramSim(t, 1)
	ours, none := s.add(kindOurs, "10.0.0.1:1000"), s.add(kindNoDev, "10.0.0.2:2000")
	stock := s.add(kindStock, "10.0.0.3:3000")
	none.sendNext(ours, 1)
	ours.sendNext(none, 1)
	stock.sendNext(none, 1)
	s.run(time.Second)
	require.Len(t, ours.got, 1)
	require.Len(t, none.got, 2)
	require.Zero(t, ours.answers+none.answers)
	require.Empty(t, stock.stock)
	require.Zero(t, ours.handles+none.handles)
}

func TestResolutionManyCast(t *testing.T) {
	a := newDgramSim(t, 1).add(kindOurs, "10.0.0.1:1000")
	for _, to := range []string{"224.0.0.1:5", "255.255.255.255:5", "[ff02::1]:5"} {
		require.Equal(t, Plain, a.table.Send(time.Now(), ap(to)).Way)
	}
	require.Empty(t, a.table.known)
}

// What an unknown peer sends cannot do more than a datagram can.
func FuzzResolution(f *testing.F) {
	a := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: 7, Probes: true, Addr: netip.MustParseAddr("10.0.0.2")}.Append(nil)
	f.Add(append([]byte{0, byte(len(a))}, a...), uint64(1))
	f.Add([]byte{1, 8, 4, 8, 1, 2, 10, 0, 0, 2, 0, 3, 1, 2, 3}, uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		s := newDgramSim(t, seed)
		n := s.add(kindOurs, "10.0.0.1:1000")
		for len(b) >= 2 {
			op, l := b[0], min(int(b[1]), len(b)-2)
			data := b[2 : 2+l]
			b = b[2+l:]
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, op >> 4}), 2000)
			s.now = s.now.Add(time.Duration(l) * 10 * time.Millisecond)
			switch op & 3 {
			case 0:
				ev := n.table.ReceiveUDP(s.now, from, n.addr.Addr(), data)
				require.LessOrEqual(t, len(ev.Payload), len(data))
				n.make(ev.Want)
				if op&4 != 0 {
					s.run(0)
				}
			case 1:
				if h, _, err := rsocket.ParseDatagramHeader(data); err == nil {
					n.table.ReceiveUD(s.now, &Message{From: h.Source, QPN: uint32(l), Control: Control(op >> 4), Size: l})
				}
			case 2:
				n.send(from, "x")
			case 3:
				if len(data) >= 4 {
					n.table.ReceiveUD(s.now, &Message{From: from, QPN: binary.BigEndian.Uint32(data) & 0xffffff, Control: Control(op >> 4)})
				}
			}
			require.LessOrEqual(t, len(n.table.known), 4)
			require.LessOrEqual(t, n.handles, len(n.table.known))
		}
		n.table.Clear()
		require.Zero(t, n.handles)
		require.Empty(t, n.table.known)
		s.run(time.Minute)
		require.Zero(t, n.handles)
	})
}
