package gateway

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

func (g *gateway) softFabric(t *testing.T) *softFabric {
	t.Helper()
	sf, ok := g.fabricOf(negotiate.CarrierSoft).(*softFabric)
	require.True(t, ok)
	return sf
}

// strayFlow is a flow that nobody knows, for queue pairs of its own.
func strayFlow(g *gateway, local, remote netip.Addr) *flow {
	return &flow{g: g, tuple: host.Tuple{Local: netip.AddrPortFrom(local, 80), Remote: netip.AddrPortFrom(remote, 999)}}
}

// TestSoftKeysEndWithTheirFlow: no key opens another flow's memory, and none is
// left behind.
func TestSoftKeysEndWithTheirFlow(t *testing.T) {
	p := newGatewayPair(t)
	sf := p.g[0].softFabric(t)
	stats := sf.units[0].soft.Stats
	before := stats()
	c1, c2 := p.dial(t, negotiate.CarrierSoft), p.dial(t, negotiate.CarrierSoft)
	one, two := c1.flow[0].chosen().ep.ConnData(), c2.flow[0].chosen().ep.ConnData()
	keys := map[uint32]bool{one.DataBuf.Key: true, one.TargetSGL.Key: true, two.DataBuf.Key: true, two.TargetSGL.Key: true}
	require.Len(t, keys, 4)
	c1.closeApps()
	c1.over(t)
	c2.closeApps()
	c2.over(t)
	p.empty(t)
	require.Equal(t, before.QPs, stats().QPs)
	p.g[0].shards[0].Call(func() {})
	require.LessOrEqual(t, stats().MRs, before.MRs+3, "only slabs that lie empty, which no peer reaches")

	sf.forgetIdle(time.Now().Add(2 * idlePeers))
	require.Empty(t, sf.peers)
	require.Equal(t, before.MRs, stats().MRs)
	require.Zero(t, p.g[0].pool.Stats().Reserved)
}

// TestSoftSendsToThePeerOnly: an offer that names a third address is none.
func TestSoftSendsToThePeerOnly(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[1]
	sf := g.softFabric(t)
	f := strayFlow(g, pairAddrs[1], pairAddrs[0])
	o := negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}
	o.RoCE.GID = verbs.GIDOf(netip.MustParseAddr("127.77.0.9"))
	_, _, err := sf.answer(f, g.shards[0], o, &negotiate.Proposal{})
	require.ErrorIs(t, err, errNotHere)
	require.Equal(t, negotiate.ReasonNoCommonCarrier, carrierReason(err))

	c, mine, err := sf.offer(f, g.shards[0])
	require.NoError(t, err)
	require.Equal(t, verbs.GIDOf(pairAddrs[1]), verbs.GID(mine.RoCE.GID))
	g.shards[0].Call(func() { err = sf.connect(c, o) })
	require.ErrorIs(t, err, errNotHere)
	g.shards[0].Call(c.close)
	require.Zero(t, g.pool.Stats().Used)
}

// TestSoftFollowsAddresses: an address that appears gets a device; one that is
// not the host's has none.
func TestSoftFollowsAddresses(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	sf := g.softFabric(t)
	late := netip.MustParseAddr("127.77.0.3")
	_, err := sf.portOf(late)
	require.ErrorIs(t, err, errNoDevice, "the host has been asked")
	require.Equal(t, negotiate.ReasonDeviceFailed, carrierReason(err), "nothing of it is the peer's")
	g.addrs = func() ([]netip.Addr, error) { return []netip.Addr{pairAddrs[0], late}, nil }
	_, err = sf.portOf(late)
	require.ErrorIs(t, err, errNoDevice, "the host is not asked for every connection")
	sf.asked[late] = time.Now().Add(-2 * addrPatience)
	port, err := sf.portOf(late)
	require.NoError(t, err)
	require.Equal(t, "soft1", port.unit.name)

	later := netip.MustParseAddr("127.77.0.5")
	g.addrs = func() ([]netip.Addr, error) { return []netip.Addr{pairAddrs[0], late, later}, nil }
	port, err = sf.portOf(later)
	require.NoError(t, err, "another address behind it is asked for at once")
	require.Equal(t, "soft2", port.unit.name)

	f := strayFlow(g, late, pairAddrs[1])
	c, o, err := sf.offer(f, g.shards[0])
	require.NoError(t, err)
	require.Equal(t, verbs.GIDOf(late), verbs.GID(o.RoCE.GID))
	g.shards[0].Call(c.close)
	list := g.Devices()
	require.Len(t, list, 4)
	require.Equal(t, []string{"shm0", "soft0", "soft1", "soft2"}, []string{list[0].Name, list[1].Name, list[2].Name, list[3].Name})
	require.Equal(t, []netip.Addr{netip.MustParseAddr("::ffff:127.77.0.3")}, list[2].GIDs)
}

// TestSoftPortInUse: without the device everything else goes on, and says so.
func TestSoftPortInUse(t *testing.T) {
	addr := netip.MustParseAddr("127.77.0.4")
	taken, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	require.NoError(t, err)
	defer taken.Close()
	cfg := config.Config{StateDir: t.TempDir(), Shards: 1, Carriers: []config.DeviceKind{config.DeviceSoft, config.DeviceHW}}
	cfg.Soft.UDPPort = taken.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	wire := link.NewWire(1500, 1)
	defer wire.Close()
	g, err := newGateway(cfg.WithDefaults(), Host{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer g.close()
	list := g.Devices()
	require.Len(t, list, 2)
	require.Equal(t, admin.DeviceFailed, list[0].State)
	require.Contains(t, list[0].Error, "address already in use")
	require.Equal(t, admin.DeviceAbsent, list[1].State)
	require.Equal(t, []string{"device_failed"}, g.Status().Degraded)
}

// TestSoftGivesUpASilentPeer: its flow goes on over the relay, and the carrier has
// to be proved again.
func TestSoftGivesUpASilentPeer(t *testing.T) {
	p := newGatewayPair(t)
	c := p.dial(t, negotiate.CarrierSoft)
	mine, other := c.flow[0].chosen(), c.flow[1].chosen()
	mine.fabric.proved(mine)
	other.s.Call(func() { _ = other.qp.Close() })
	start := time.Now()
	_, err := c.app[0].Write([]byte("anybody there?"))
	require.NoError(t, err)
	_ = c.app[1].SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 14)
	_, err = io.ReadFull(c.app[1], got)
	require.NoError(t, err)
	require.Equal(t, "anybody there?", string(got))
	require.WithinRange(t, time.Now(), start.Add(2*time.Second), start.Add(patience))
	require.Equal(t, "peer_dead", c.flow[0].info(time.Now()).Demoted)
	require.Equal(t, DemotedByPeer, c.flow[1].info(time.Now()).Demoted)
	require.False(t, mine.fabric.warm(mine))
	c.closeApps()
	c.over(t)
	p.empty(t)
}
