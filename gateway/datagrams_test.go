package gateway

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/negotiate"
)

// datagramPair is two gateways under one kernel that carry datagrams.
type datagramPair struct {
	g [2]*gateway
	d [2]*twohosts.Datagrams
}

func newDatagramPair(t testing.TB, kind report.DeviceKind) *datagramPair {
	t.Helper()
	dir := twohosts.Dir(t)
	p, ports := &datagramPair{}, [2]uint16{twohosts.FreePort(t), twohosts.FreePort(t)}
	for i := range p.g {
		p.d[i] = twohosts.NewDatagrams(t)
		cfg := carryingDatagrams(t, ports[0])
		cfg.ShmDir, cfg.Carriers, cfg.Soft.UDPPort = dir, []report.DeviceKind{kind}, ports[1]
		p.g[i] = datagramGatewayAt(t, i, cfg, p.d[i])
	}
	return p
}

// carryingDatagrams is a configuration with a rule about datagrams.
func carryingDatagrams(t testing.TB, port uint16) config.Config {
	c := config.Config{
		Mode: report.ModeEnforce, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{}, DatagramPort: config.OptionalPort(port),
		Policy: []config.Rule{{
			Action: report.ActionAccelerate,
			Match:  config.Match{Proto: report.ProtoUDP, Peers: []netip.Prefix{netip.MustParsePrefix("127.64.0.0/10")}},
		}},
	}
	c.Limits.Memory = 64 << 20
	return c
}

// datagramGatewayAt is a gateway at one of pairAddrs; d is nil on a host that cannot
// steer datagrams.
func datagramGatewayAt(t testing.TB, i int, cfg config.Config, d *twohosts.Datagrams) *gateway {
	t.Helper()
	wire := wire.New(1500, 1)
	h := localHost{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(), ID: [16]byte{1}, datagramAddr: pairAddrs[i],
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{pairAddrs[i]}, nil },
	}
	if d != nil {
		h.Datagrams, h.AppTUN = d, d.A
	}
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: h}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() {
		g.close()
		wire.Close()
	})
	return g
}

// from is the tuple of a datagram of host i.
func (p *datagramPair) from(i int) ebpf.Tuple {
	return ebpf.Tuple{Local: netip.AddrPortFrom(pairAddrs[i], 4000), Remote: netip.AddrPortFrom(pairAddrs[1-i], 4000)}
}

// ask is the programs' question about the peer of host i.
func (p *datagramPair) ask(i int) {
	p.g[i].onEvent(ebpf.Event{Kind: ebpf.EventDatagram, Tuple: p.from(i), Proto: ebpf.ProtoUDP})
}

// meet waits until both gateways carry datagrams to each other.
func (p *datagramPair) meet(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		p.ask(0)
		return p.d[0].Peer(pairAddrs[1], 0).Capable && p.d[1].Peer(pairAddrs[0], 0).Capable
	}, patience, 10*time.Millisecond)
}

// pass sends a datagram from host i.
func (p *datagramPair) pass(t testing.TB, i int, text string) {
	t.Helper()
	p.d[i].Steer(t, p.from(i), []byte(text))
	require.True(t, bytes.HasSuffix(p.d[1-i].Next(patience), []byte(text)))
}

// native waits until the programs of host i leave the other one alone.
func (p *datagramPair) native(t testing.TB, i int) negotiate.Reason {
	t.Helper()
	require.Eventually(t, func() bool { return p.d[i].Peer(pairAddrs[1-i], 0).Reason != 0 }, patience, time.Millisecond)
	return negotiate.Reason(p.d[i].Peer(pairAddrs[1-i], 0).Reason)
}

func onEachDevice(t *testing.T, fn func(t *testing.T, kind report.DeviceKind)) {
	t.Helper()
	for _, kind := range []report.DeviceKind{report.DeviceShm, report.DeviceSoft} {
		t.Run(string(kind), func(t *testing.T) { fn(t, kind) })
	}
}

// TestDatagramsOfGateways: on the devices of whole gateways, switched off and on, and
// as an operator sees them.
func TestDatagramsOfGateways(t *testing.T) {
	onEachDevice(t, func(t *testing.T, kind report.DeviceKind) {
		p := newDatagramPair(t, kind)
		p.meet(t)
		p.pass(t, 0, "there")
		p.pass(t, 1, "back")
		for i, g := range p.g {
			list := g.Conns(report.ConnQuery{})
			require.Len(t, list, 1)
			require.Equal(t, "udp", list[0].Proto)
			require.Equal(t, kind.Carrier(), list[0].Carrier)
			require.Contains(t, g.engine().peers.Known(time.Now())[pairAddrs[1-i]].Proven, kind.Carrier())
			require.Equal(t, 1, g.Snapshot().UDP.Flows[kind.Carrier()].Now)
		}
		require.NoError(t, p.g[0].SetOff(true))
		require.Equal(t, negotiate.ReasonOff, p.native(t, 1))
		past := p.g[0].Conns(report.ConnQuery{Closed: true})
		require.Len(t, past, 1)
		require.Equal(t, "off", past[0].Reason)
		require.Equal(t, life.Native.String(), past[0].State)
		require.NoError(t, p.g[0].SetOff(false))
		p.meet(t)
		p.pass(t, 0, "again")
	})
}

// requireGrown fails if a counter of datagrams has become less, or a processor has run back.
func requireGrown(t *testing.T, before, now *report.Snapshot) {
	t.Helper()
	for by, n := range before.UDP.Flows {
		require.GreaterOrEqual(t, now.UDP.Flows[by].Total, n.Total, by)
		require.GreaterOrEqual(t, now.UDP.Bytes[by].Tx, before.UDP.Bytes[by].Tx, by)
		require.GreaterOrEqual(t, now.UDP.Bytes[by].Rx, before.UDP.Bytes[by].Rx, by)
		require.GreaterOrEqual(t, now.Datagrams.Sent[by], before.Datagrams.Sent[by], by)
		require.GreaterOrEqual(t, now.Datagrams.Received[by], before.Datagrams.Received[by], by)
	}
	require.GreaterOrEqual(t, now.Datagrams.Delivered, before.Datagrams.Delivered)
	require.GreaterOrEqual(t, now.Datagrams.Resolution.Queries, before.Datagrams.Resolution.Queries)
	require.GreaterOrEqual(t, now.Datagrams.Resolution.Asked, before.Datagrams.Resolution.Asked)
	for of, d := range before.CPU {
		require.GreaterOrEqual(t, now.CPU[of], d, of)
	}
}

// TestCountersOfAnEngine: a gateway goes on counting when its engine has ended, and when it has
// another one. What ended with it is not there now.
func TestCountersOfAnEngine(t *testing.T) {
	p := newDatagramPair(t, report.DeviceSoft)
	p.meet(t)
	p.pass(t, 0, "carried")
	g, soft := p.g[1], report.CarrierSoft
	before := g.Snapshot()
	require.Equal(t, 1, before.UDP.Flows[soft].Now)
	for range 2 {
		cfg := g.cfg
		cfg.Mode = report.ModeObserve
		require.NoError(t, g.reload(cfg, nil))
		settled(t, g)
		now := g.Snapshot()
		requireGrown(t, &before, &now)
		require.Equal(t, now.UDP.Flows[soft], report.FlowCount{Total: 1})
		require.Len(t, now.Ended, 1)
		require.Positive(t, now.Ended[0].Counters["tx_bytes"])
		require.Contains(t, now.Bounds.Wire, "adopted")
		require.Empty(t, now.Devices)
		require.NoError(t, g.reload(g.cfg, nil))
		require.True(t, g.carries())
		before = g.Snapshot()
		requireGrown(t, &now, &before)
		require.NotEmpty(t, before.Devices)
	}
}

// TestDatagramsGivenUpAndTakenBack: as by a takeover that does not come about. The
// device on a network goes with the engine, shared memory does not. The peer rests for
// a minute, because it was told that this gateway goes.
func TestDatagramsGivenUpAndTakenBack(t *testing.T) {
	onEachDevice(t, func(t *testing.T, kind report.DeviceKind) {
		p := newDatagramPair(t, kind)
		p.meet(t)
		p.pass(t, 0, "carried")
		p.g[1].host.Beside = activated{}
		require.Eventually(t, func() bool { // counted after the write that the test has read
			return p.g[1].Totals().Datagrams.Delivered > 0
		}, patience, time.Millisecond)
		before := p.g[1].Snapshot()
		require.NoError(t, p.g[1].Yield())
		between := p.g[1].Snapshot()
		requireGrown(t, &before, &between)
		require.Zero(t, p.g[1].engine().datagrams().Port())
		require.Equal(t, negotiate.ReasonDrained, p.native(t, 0))
		p.g[1].engine().reopenDatagrams()
		require.Zero(t, p.g[1].engine().datagrams().Port(), "the port is a successor's")
		require.NoError(t, p.d[1].ForgetDatagramPeer(pairAddrs[0], 0))
		require.NoError(t, p.g[1].TakeBack())
		require.NotZero(t, p.g[1].engine().datagrams().Port())
		require.Eventually(t, func() bool {
			p.ask(1)
			return p.d[1].Peer(pairAddrs[0], 0).Capable
		}, patience, 10*time.Millisecond)
		p.pass(t, 1, "carried again")
		after := p.g[1].Snapshot()
		requireGrown(t, &before, &after)
		require.Equal(t, between.UDP.Flows[kind.Carrier()].Total+1, after.UDP.Flows[kind.Carrier()].Total)
		for i := range before.Devices {
			for name, n := range before.Devices[i].Counters {
				require.GreaterOrEqual(t, after.Devices[i].Counters[name], n, name)
			}
		}
	})
}

// TestDatagramsLeftNative: the programs count what they left native, each protocol by itself.
func TestDatagramsLeftNative(t *testing.T) {
	g := datagramGatewayAt(t, 0, carryingDatagrams(t, twohosts.FreePort(t)), twohosts.NewDatagrams(t))
	tuple := ebpf.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], 1), Remote: netip.AddrPortFrom(pairAddrs[1], 2)}
	g.onEvent(ebpf.Event{Kind: ebpf.EventNative, Tuple: tuple, Proto: ebpf.ProtoUDP, Reason: uint8(negotiate.ReasonPeerDead)})
	steer := g.steer.(*fakeSteering)
	steer.mu.Lock()
	steer.counters.Native[ebpf.SideClient] = map[uint8]uint64{uint8(negotiate.ReasonPeerDead): 2}
	steer.counters.Datagrams[ebpf.SideClient] = map[uint8]uint64{uint8(negotiate.ReasonPeerDead): 1}
	steer.mu.Unlock()
	snap := g.Snapshot()
	require.Equal(t, map[string]uint64{"peer_dead": 1}, snap.UDP.Native)
	require.Equal(t, []report.FallbackCount{{Reason: "peer_dead", Side: report.SideClient, Count: 2}}, snap.Fallbacks)
	require.Equal(t, "udp", g.Conns(report.ConnQuery{All: true})[0].Proto)
}

// TestDatagramsOnlyForThoseWhoWantThem: without a rule, or without a port, nothing
// listens and peers are told of no port.
func TestDatagramsOnlyForThoseWhoWantThem(t *testing.T) {
	for name, change := range map[string]func(c *config.Config){
		"no rule":  func(c *config.Config) { c.Policy[0].Match.Proto = report.ProtoTCP },
		"pass":     func(c *config.Config) { c.Policy[0].Action = report.ActionPass },
		"no port":  func(c *config.Config) { c.DatagramPort = config.NoPort },
		"observe":  func(c *config.Config) { c.Mode = report.ModeObserve },
		"no steer": func(*config.Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, d := carryingDatagrams(t, twohosts.FreePort(t)), twohosts.NewDatagrams(t)
			if change(&cfg); name == "no steer" {
				d = nil
			}
			g := datagramGatewayAt(t, 0, cfg, d)
			require.Nil(t, g.engine().datagrams())
			require.Zero(t, g.engine().datagrams().Port())
			require.Empty(t, g.Snapshot().Datagrams.Sent)
			g.onEvent(ebpf.Event{Kind: ebpf.EventDatagram})
		})
	}
}

// TestDatagramPortTaken: the gateway starts all the same, says what is missing, and carries
// when the port is free, as everything else says.
func TestDatagramPortTaken(t *testing.T) {
	port := twohosts.FreePort(t)
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(pairAddrs[0], port)))
	require.NoError(t, err)
	defer c.Close()
	g := datagramGatewayAt(t, 0, carryingDatagrams(t, port), twohosts.NewDatagrams(t))
	require.Nil(t, g.engine().datagrams())
	require.Equal(t, []string{"device_failed"}, g.Status().Degraded)
	require.NoError(t, g.reload(g.cfg, nil), "its rules carry datagrams as soon as the port is free")
	require.NoError(t, c.Close())
	asked := make(chan report.Status)
	go func() { asked <- g.Status() }() // beside the chores
	g.engine().reopenDatagrams()
	<-asked
	require.Equal(t, port, g.engine().datagrams().Port())
	require.Empty(t, g.Status().Degraded)
}

// TestDatagramPortOfASuccessor: what a successor that goes has not freed yet is taken back
// later, and not by a gateway that has left, or stops.
func TestDatagramPortOfASuccessor(t *testing.T) {
	port := twohosts.FreePort(t)
	g := datagramGatewayAt(t, 0, carryingDatagrams(t, port), twohosts.NewDatagrams(t))
	g.host.Beside = activated{}
	require.NoError(t, g.Yield())
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(pairAddrs[0], port)))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, g.TakeBack())
	require.Nil(t, g.engine().datagrams())
	require.NoError(t, c.Close())
	g.engine().reopenDatagrams()
	require.Equal(t, port, g.engine().datagrams().Port())

	require.NoError(t, g.Yield())
	g.engine().reopenDatagrams()
	require.Nil(t, g.engine().datagrams())
	g.quiesce()
	require.NoError(t, g.TakeBack())
	require.Nil(t, g.engine().datagrams())
}

// TestOffAndOnKeepTheMode: they do not bring datagrams back that the mode keeps native.
func TestOffAndOnKeepTheMode(t *testing.T) {
	p := newDatagramPair(t, report.DeviceSoft)
	p.meet(t)
	p.pass(t, 0, "there")
	cfg := p.g[0].cfg
	cfg.Mode = report.ModeObserve
	require.NoError(t, p.g[0].reload(cfg, nil))
	require.Equal(t, negotiate.ReasonMode, p.native(t, 1))
	require.NoError(t, p.g[0].SetOff(true))
	require.NoError(t, p.g[0].SetOff(false))
	require.Equal(t, report.ModeObserve, p.g[0].mode())
	require.Never(t, func() bool {
		return p.d[0].Peer(pairAddrs[1], 0).Capable || p.d[1].Peer(pairAddrs[0], 0).Capable
	}, 300*time.Millisecond, 10*time.Millisecond, "programs are told to carry")
}

// TestSoftPortInUse: without the device everything else goes on, and says so.
func TestSoftPortInUse(t *testing.T) {
	g := softBeside(t, 4791, 4793)
	list := g.engine().devices()
	require.Len(t, list, 2)
	require.Equal(t, report.DeviceFailed, list[0].State)
	require.Contains(t, list[0].Error, "address already in use")
	require.Equal(t, report.DeviceAbsent, list[1].State, "hw")
	st := g.Status()
	require.Equal(t, []string{"device_failed"}, st.Degraded)
	require.Len(t, st.Notes, 2)
	require.Regexp(t, `^soft0: .*address already in use`, st.Notes[0])
	require.Equal(t, "carriers: none of [soft hw] works on this host, and every connection stays native: smcgw devices tells why", st.Notes[1])
}

// softBeside is a gateway on a host where ports are in use.
func softBeside(t *testing.T, ports ...uint16) *gateway {
	t.Helper()
	addr := twohosts.Addr(4)
	for _, p := range ports {
		taken, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, p).String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = taken.Close() })
	}
	cfg := config.Config{Mode: report.ModeEnforce, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{report.DeviceSoft, report.DeviceHW}}
	wire := wire.New(1500, 1)
	t.Cleanup(wire.Close)
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: localHost{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(g.close)
	return g
}
