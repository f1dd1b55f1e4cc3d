package soft

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simEar records what a link hands over.
type simEar struct {
	got []string
	ce  int
	at  []time.Duration
	net *simNet
}

func (e *simEar) deliver(d *datagram) {
	e.got = append(e.got, string(d.data))
	e.at = append(e.at, e.net.now)
	if d.ce {
		e.ce++
	}
}

// simWire is two links with nothing after them.
type simWire struct {
	*simNet
	a, b link
	ear  simEar
	dst  netip.AddrPort
}

func newSimWire(t *testing.T, seed uint64) *simWire {
	w := &simWire{simNet: newSimNet(seed)}
	w.ear.net = w.simNet
	var links [2]link
	for i, addr := range modelAddrs[false] {
		cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}.withDefaults()
		l, err := w.newLink(&cfg, 0)
		require.NoError(t, err)
		links[i] = l
		w.dst = netip.AddrPortFrom(cfg.Addrs[0], cfg.UDPPort)
	}
	w.a, w.b = links[0], links[1]
	return w
}

func (w *simWire) there() *simRoute { return w.route(w.dst.Addr().Prev(), w.dst.Addr()) }

// send sends payloads one by one and drains what arrives.
func (w *simWire) send(ect bool, payloads ...string) []string {
	for _, p := range payloads {
		w.a.send([]train{{dst: w.dst, size: len(p), count: 1, total: len(p), bufs: [][]byte{[]byte(p)}, ect: ect}})
	}
	return w.drain()
}

func (w *simWire) drain() []string {
	w.ear.got = nil
	for {
		at, ok := w.events.next()
		if !ok {
			return w.ear.got
		}
		w.now = at
		w.events.pop()()
		for w.b.receive(3, &w.ear) {
		}
	}
}

func numbered(n int) (list []string) {
	for i := range n {
		list = append(list, time.Duration(i).String()+" is the number of this datagram")
	}
	return list
}

func TestSimTrain(t *testing.T) {
	w := newSimWire(t, 1)
	w.a.send([]train{{dst: w.dst, size: 4, count: 3, total: 10, bufs: [][]byte{[]byte("abc"), []byte("defghi"), nil, []byte("j")}}})
	require.Equal(t, []string{"abcd", "efgh", "ij"}, w.drain())
	require.Equal(t, linkStats{SentPackets: 3, SentBytes: 10, SentCalls: 1}, w.a.stats())
	for _, bad := range []train{
		{dst: w.dst, size: 4, count: 3, total: 9, bufs: [][]byte{make([]byte, 10)}},
		{dst: w.dst, size: 4, count: 2, total: 10, bufs: [][]byte{make([]byte, 10)}},
		{dst: w.dst, size: 4, count: 4, total: 10, bufs: [][]byte{make([]byte, 10)}},
		{dst: w.dst, size: 1, count: 65, total: 65, bufs: [][]byte{make([]byte, 65)}},
	} {
		require.Panics(t, func() { w.a.send([]train{bad}) })
	}
}

// A datagram is overwritten after deliver, which shows a device that keeps it.
func TestSimDatagramIsNotKept(t *testing.T) {
	w := newSimWire(t, 1)
	var kept []byte
	w.a.send([]train{{dst: w.dst, size: 1, count: 1, total: 1, bufs: [][]byte{{1}}}})
	w.now += time.Second
	w.events.pop()()
	w.b.receive(1, receiverFunc(func(d *datagram) { kept = d.data }))
	require.Equal(t, []byte{0xdb}, kept)
}

type receiverFunc func(d *datagram)

func (f receiverFunc) deliver(d *datagram) { f(d) }

func TestSimFaults(t *testing.T) {
	const n = 4000
	in := numbered(n)
	run := func(f simFaults) (*simWire, []string) {
		w := newSimWire(t, 3)
		w.there().simFaults = f
		return w, w.send(false, in...)
	}
	_, got := run(simFaults{jitter: time.Millisecond})
	require.Equal(t, in, got, "jitter alone does not reorder")
	w, got := run(simFaults{loss: 0.1})
	require.Len(t, got, n-w.stats.lost)
	require.InDelta(t, n/10, w.stats.lost, n/40)
	w, got = run(simFaults{duplicate: 0.1})
	require.Len(t, got, n+w.stats.duplicated)
	require.InDelta(t, n/10, w.stats.duplicated, n/40)
	_, got = run(simFaults{reorder: 0.1, late: time.Millisecond})
	require.ElementsMatch(t, in, got)
	require.NotEqual(t, in, got)
	w, again := run(simFaults{reorder: 0.1, late: time.Millisecond})
	require.Equal(t, got, again, "the same seed does the same")
	require.InDelta(t, n/10, w.stats.reordered, n/40)
	w, got = run(simFaults{loss: 0.02, burst: 10})
	require.InDelta(t, n/10, w.stats.lost, n/20)
	require.Len(t, got, n-w.stats.lost)
}

// The checksum finds what a kernel's finds, which is nearly everything.
func TestSimCorruption(t *testing.T) {
	const n = 20000
	in := numbered(n)
	w := newSimWire(t, 4)
	w.there().corrupt = 0.5
	got := w.send(false, in...)
	require.InDelta(t, n/2, w.stats.corrupted, n/20)
	require.Len(t, got, n-w.stats.badChecksum)
	require.Greater(t, w.stats.badChecksum, w.stats.corrupted*99/100)
	w = newSimWire(t, 4)
	w.there().corrupt, w.there().unchecked = 1, 1
	got = w.send(false, in...)
	require.Len(t, got, n)
	same := 0
	for i := range got {
		if got[i] == in[i] {
			same++ // the flips cancelled out, or noise that is what was there
		}
	}
	require.Less(t, same, n/50)
}

// A bottleneck takes its time, holds what it holds, and marks.
func TestSimPipe(t *testing.T) {
	w := newSimWire(t, 5)
	size := wireSize(w.dst.Addr(), 100)
	pipe := &simPipe{rate: float64(size) * 1000, limit: 10 * size, markAt: 5 * size} // one datagram a millisecond
	w.there().hops = []*simPipe{pipe}
	w.there().delay = time.Second
	var in []string
	for range 20 {
		in = append(in, string(make([]byte, 100)))
	}
	require.Len(t, w.send(true, in...), 10)
	for i, at := range w.ear.at {
		require.InDelta(t, time.Second+time.Duration(i+1)*time.Millisecond, at, 1000)
	}
	require.Equal(t, 5, w.ear.ce)
	require.Equal(t, 10, pipe.drops)
	require.Equal(t, 10*size, pipe.max)
}

func TestSimTap(t *testing.T) {
	w := newSimWire(t, 6)
	w.there().tap = func(_ netip.AddrPort, b []byte) simVerdict { return simVerdict(b[0] - '0') }
	require.Equal(t, []string{"0", "2", "2"}, w.send(false, "0", "1", "2"))
}
