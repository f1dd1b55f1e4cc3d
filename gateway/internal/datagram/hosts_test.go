package datagram

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
)

// hosts are two hosts whose gateways carry datagrams.
type hosts struct {
	t     testing.TB
	dir   string
	kinds []report.DeviceKind
	soft  uint16
	port  uint16
	// anywhere: the datagram port is on all addresses, as on a real host.
	anywhere bool
	shards   int
	edit     func(i int, list []Provider) // changes the devices of a host before its engine has them; may be nil
	starts   byte
	g        [2]*machine // nil: stopped
	d        [2]*fakeSteering
}

func newHosts(t testing.TB, kinds ...report.DeviceKind) *hosts {
	t.Helper()
	dir := twohosts.Dir(t)
	h := &hosts{t: t, dir: dir, kinds: kinds, soft: twohosts.FreePort(t), port: twohosts.FreePort(t)}
	for i := range h.g {
		h.d[i] = &fakeSteering{twohosts.NewDatagrams(t)}
		h.start(i)
	}
	t.Cleanup(func() {
		for i := range h.g {
			h.stop(i)
		}
	})
	return h
}

// start starts the engine of a host.
func (h *hosts) start(i int) {
	h.t.Helper()
	require.NoError(h.t, h.open(i))
}

// open is start that can fail.
func (h *hosts) open(i int) error {
	h.starts++
	m := newMachine(h.t, h.starts, max(1, h.shards))
	for _, kind := range h.kinds {
		if kind == report.DeviceShm {
			m.openShm(h.dir)
		} else {
			m.openSoft(pairAddrs[i], h.soft)
		}
	}
	if h.edit != nil {
		h.edit(i, m.providers)
	}
	cfg := Config{
		GatewayID: m.id, HostID: [16]byte{1}, Port: h.port, Only: pairAddrs[i], OwnPorts: []uint16{h.port, h.soft},
		Policy: negotiate.CachePolicy{NegativeTTL: 10 * time.Minute}, Shard: m.shards[0], TUN: h.d[i].A, Steering: h.d[i],
		Providers: m.providers, Gateway: m, Log: slog.New(slog.DiscardHandler),
	}
	if h.anywhere {
		cfg.Only = netip.Addr{}
	}
	e, err := Open(cfg)
	m.engine.Store(e)
	if err != nil {
		m.close()
		return err
	}
	h.g[i] = m
	return nil
}

func (h *hosts) stop(i int) {
	if h.g[i] != nil {
		h.g[i].close()
		h.g[i] = nil
	}
}

// forget clears what the programs of a host know of peers, as a new start does.
func (h *hosts) forget(i int) {
	h.d[i].Lock()
	defer h.d[i].Unlock()
	clear(h.d[i].Peers)
}

// want is the programs' question about the peer of host i.
func (h *hosts) want(i int) {
	t := ebpf.Tuple{Local: netip.AddrPortFrom(pairAddrs[i], 9), Remote: netip.AddrPortFrom(pairAddrs[1-i], 9)}
	h.g[i].engine.Load().Asked(t)
}

// capable waits until the programs of host i take its peer for capable.
func (h *hosts) capable(i int) {
	h.t.Helper()
	ok := func() bool { return h.d[i].Peer(pairAddrs[1-i], 0).Capable }
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		require.True(h.t, time.Now().Before(end), "host %d: %+v; %+v; %+v", i, h.d[i].Peer(pairAddrs[1-i], 0), h.stats(0), h.stats(1))
	}
}

// meet resolves the peer of host 0, and with it that of host 1.
func (h *hosts) meet() {
	h.t.Helper()
	known := func() bool {
		h.want(0)
		return h.d[0].Peer(pairAddrs[1], 0).Capable && h.d[1].Peer(pairAddrs[0], 0).Capable
	}
	for end := time.Now().Add(patience); !known() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // a proof that is late is asked for again
	}
	h.capable(0)
	h.capable(1)
}

// ends is a datagram from host i, by ports.
func (h *hosts) ends(i int, from, to uint16) endPair {
	return endPair{src: netip.AddrPortFrom(pairAddrs[i], from), dst: netip.AddrPortFrom(pairAddrs[1-i], to)}
}

// pass sends a datagram from host i and checks what arrives.
func (h *hosts) pass(i int, ends endPair, payload []byte) {
	h.t.Helper()
	h.d[i].steer(h.t, ends, payload)
	p := h.d[1-i].receive(h.t)
	require.Equal(h.t, ends, p.endPair)
	require.True(h.t, bytes.Equal(payload, p.payload), "%d bytes", len(payload))
}

// lateTries is how often a test begins again whose datagrams a host without a processor left
// native.
const lateTries = 10

// passes is pass that tells whether the datagram was carried, or given back.
func (h *hosts) passes(t *testing.T, i int, ends endPair, payload []byte) bool {
	t.Helper()
	h.d[i].steer(t, ends, payload)
	d, p := h.either(t)
	require.Equal(t, ends, p.endPair)
	require.True(t, bytes.Equal(payload, p.payload), "%d bytes", len(payload))
	return d == h.d[1-i]
}

// stoodStill returns a function that tells for how long a loop of the hosts, or the test
// itself, had no processor at most since.
func (h *hosts) stoodStill() (longest func() time.Duration) {
	stop, told := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		most := time.Duration(0)
		defer func() { told <- most }()
		for last := time.Now(); ; {
			select {
			case <-stop:
				return
			case <-time.After(tickEvery):
			}
			for i := range h.g {
				h.engine(i).s.Call(func() {})
			}
			now := time.Now()
			most, last = max(most, now.Sub(last)), now
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-told
	}
}

func (h *hosts) stats(i int) report.DatagramStats {
	e := h.engine(i)
	e.s.Call(e.queryCounts)
	return h.g[i].snapshot().Datagrams
}

func onBoth(t *testing.T, fn func(t *testing.T, kind report.DeviceKind)) {
	t.Helper()
	for _, kind := range []report.DeviceKind{report.DeviceShm, report.DeviceSoft} {
		t.Run(string(kind), func(t *testing.T) { fn(t, kind) })
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// TestDatagramsPass: of every size, both ways, with their boundaries and ends, over a path
// with a small MTU too.
func TestDatagramsPass(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		for _, narrow := range []bool{false, true} {
			for try := 0; ; try++ {
				h := newHosts(t, kind)
				for i := range h.g {
					if narrow {
						h.narrow(i)
					}
				}
				if datagramsPass(t, h, kind) {
					break
				}
				require.Less(t, try, lateTries, "some are always given back, or a query is sent again")
			}
		}
	})
}

// datagramsPass tells whether all were carried. A host that has no processor may have no room
// for one, or get a query again.
func datagramsPass(t *testing.T, h *hosts, kind report.DeviceKind) bool {
	h.meet()
	there, back := h.ends(0, 4000, 53), h.ends(1, 53, 4000)
	sizes := []int{0, 1, 2, 511, 1007, 1008, 1009, 1472, 2015, 2016, 2017, 4080, 4081, 8972, 65507}
	for _, n := range sizes {
		if !h.passes(t, 0, there, randomBytes(n)) || !h.passes(t, 1, back, randomBytes(n)) {
			return false
		}
	}
	name := kind.Carrier()
	s := h.stats(0)
	require.EqualValues(t, len(sizes), s.Sent[name])
	require.EqualValues(t, len(sizes), s.Received[name])
	require.EqualValues(t, len(sizes), s.Delivered)
	require.Zero(t, s.Returned)
	for why, n := range s.Dropped {
		require.Zero(t, n, why)
	}
	if s.Resolution.Queries > 1 {
		return false
	}
	require.Equal(t, report.ResolutionStats{Queries: 1, Answers: 1, Asked: 1, Answered: 1}, s.Resolution)

	list := h.g[0].flows()
	require.Len(t, list, 1)
	require.Equal(t, "udp", list[0].Proto)
	require.Equal(t, report.SideClient, list[0].Side)
	require.Equal(t, name, list[0].Carrier)
	require.Equal(t, there.src, list[0].Local)
	require.Equal(t, there.dst, list[0].Remote)
	require.NotZero(t, list[0].TxBytes)
	require.Equal(t, list[0].TxBytes, h.g[1].flows()[0].RxBytes)
	require.Equal(t, report.SideServer, h.g[1].flows()[0].Side)
	require.True(t, h.d[1].IsOpen(ebpf.Tuple{Local: there.dst, Remote: there.src}))
	return true
}

// TestDatagramsWithSeveralShards: one of them carries all datagrams, and finds its
// packets among those of all vectors.
func TestDatagramsWithSeveralShards(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		for i := range h.g {
			h.stop(i)
		}
		for i := range h.g {
			h.shards = 3 - i
			h.start(i)
			h.forget(i)
		}
		h.meet()
		for i := range uint16(20) {
			h.pass(0, h.ends(0, 4000+i, 53), randomBytes(3000))
			h.pass(1, h.ends(1, 53, 4000+i), randomBytes(3000))
		}
	})
}

// TestDatagramsUnprovenAreNative: without a capable peer everything steered goes
// back as it came.
func TestDatagramsUnprovenAreNative(t *testing.T) {
	h := newHosts(t, report.DeviceShm, report.DeviceSoft)
	ends := h.ends(0, 4000, 53)
	h.d[0].steer(t, ends, []byte("early"))
	p := h.d[0].receive(t) // back on the app TUN
	require.Equal(t, ends, p.endPair)
	require.Equal(t, "early", string(p.payload))
	require.EqualValues(t, 1, h.stats(0).Returned)
	require.True(t, h.d[0].WasClosed(ebpf.Tuple{Local: ends.src, Remote: ends.dst}))
	require.Empty(t, h.g[0].flows())
	require.Zero(t, h.d[0].Peer(pairAddrs[1], 0), "nothing was proved")
}

// TestDatagramPeerWithoutGateway: it is asked once and left alone.
func TestDatagramPeerWithoutGateway(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.stop(1)
	for range 3 {
		h.want(0)
	}
	require.Eventually(t, func() bool { return h.d[0].Peer(pairAddrs[1], 0).Reason != 0 }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, negotiate.ReasonPeerUnresolved, negotiate.Reason(h.d[0].Peer(pairAddrs[1], 0).Reason))
	h.want(0)
	require.EqualValues(t, 1, h.stats(0).Resolution.Queries)
}

// TestDatagramsBothAskAtOnce: each offers memory to the other, and both ways
// work.
func TestDatagramsBothAskAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		for range 3 {
			h.want(0)
			h.want(1)
			h.capable(0)
			h.capable(1)
			h.pass(0, h.ends(0, 4000, 53), []byte("there"))
			h.pass(1, h.ends(1, 53, 4000), []byte("back"))
			h.pass(1, h.ends(1, 4000, 53), []byte("there"))
			h.pass(0, h.ends(0, 53, 4000), []byte("back"))
			for i := range h.g {
				h.stop(i)
			}
			for i := range h.g {
				h.start(i)
				h.forget(i)
			}
		}
	})
}
