package gateway

import (
	"net/netip"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/paths"
	"github.com/smcgw/smcgw/negotiate"
)

// pastDatagrams are the histories of UDP: pairs of ends come and go by the
// thousand, and must not displace connections.
type pastDatagrams struct{ closed, native *admin.History }

// wantsDatagrams reports whether the gateway has the engine, or tries to have it.
func (g *gateway) wantsDatagrams() bool {
	return g.cfg.Mode == config.ModeEnforce && g.cfg.WantsDatagrams()
}

// openDatagrams starts the engine, unless it is there, no rule is about datagrams, the
// mode touches nothing, the port is configured away or a successor's, or the host cannot
// steer them. An engine that does not start is left out as a carrier is: datagrams stay
// native, the status says so, and the chores try again.
func (g *gateway) openDatagrams() (opened bool) {
	g.opening.Lock()
	defer g.opening.Unlock()
	h := g.host
	if h.Datagrams == nil || !g.wantsDatagrams() || g.dgrams.Load() != nil || g.yielded || g.stopping.Load() {
		return false
	}
	e, err := datagram.Open(datagram.Config{
		GatewayID: g.env.GatewayID, HostID: g.env.HostID, Port: g.cfg.DatagramPort.Port(), Only: h.datagramAddr, OwnPorts: g.cfg.OwnPorts(),
		Keys: g.env.Keys.Load(), Policy: g.env.Policy, Shard: g.shards[0], TUN: h.AppTUN, Steering: h.Datagrams,
		Fabrics: paths.Fabrics(g.env.Fabrics, g.shards[0], g.cfg.HW), Gateway: datagramGateway{g}, Log: g.log,
	})
	if err != nil {
		if g.noDatagrams.Swap(&err) == nil {
			g.log.Warn("datagrams left out, until the port is free", "error", err)
		}
		return false
	}
	if g.noDatagrams.Swap(nil) != nil {
		g.log.Info("datagrams are carried")
	}
	g.dgrams.Store(e)
	return true
}

// reopenDatagrams starts an engine that is missing while the gateway serves.
func (g *gateway) reopenDatagrams() {
	if !g.openDatagrams() {
		return
	}
	g.reloading.Lock() // which changes the mode, too
	defer g.reloading.Unlock()
	g.settleDatagrams(g.mode())
}

// settleDatagrams carries datagrams, or not, as mode, switch and drain say; g.reloading is
// held, so that the last of those that call it at once has the last word.
func (g *gateway) settleDatagrams(mode config.Mode) {
	e := g.dgrams.Load()
	switch {
	case g.off.Load():
		e.Quiesce(negotiate.ReasonOff)
	case g.drainer.Info() != nil:
		e.Quiesce(negotiate.ReasonDrained)
	case mode != config.ModeEnforce:
		e.Quiesce(negotiate.ReasonMode)
	default:
		e.Resume()
	}
}

// yieldDatagrams ends the engine while the gateway goes on, and leaves its port to a
// successor.
func (g *gateway) yieldDatagrams() {
	g.opening.Lock()
	defer g.opening.Unlock()
	g.yielded = true
	g.dgrams.Load().Leave()
	g.tally.End(func(s *admin.Snapshot) {
		g.dgrams.Load().Snapshot(s)
		g.dgrams.Store(nil)
	})
}

// takeBackDatagrams undoes yieldDatagrams. Where a successor still has the port, the
// chores do so later.
func (g *gateway) takeBackDatagrams() {
	g.opening.Lock()
	g.yielded = false
	g.opening.Unlock()
	g.reopenDatagrams()
}

// datagramGateway is the gateway as the datagram engine sees it, and that engine as
// connections do.
type datagramGateway struct{ g *gateway }

func (d datagramGateway) NextID() uint64 {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	d.g.nextID++
	return d.g.nextID
}

func (d datagramGateway) MaxFlows() int { return d.g.live.Load().Limits.MaxFlows }

func (d datagramGateway) Off() bool { return d.g.off.Load() }

func (d datagramGateway) NamesPeer(a netip.Addr) bool { return d.g.live.Load().NamesDatagramPeer(a) }

func (d datagramGateway) Proven(a netip.Addr, by config.Carrier) { d.g.peers.Proven(a, by) }

func (d datagramGateway) NoCommonKey(a netip.Addr) { d.g.env.Keys.NoCommonKey(a, config.SideClient) }

func (d datagramGateway) Ended(c admin.ConnInfo) {
	d.g.udp.closed.Add(c)
	d.g.env.Lines.Ended(c)
}

// Port implements conn.Datagrams.
func (d datagramGateway) Port() uint16 { return d.g.dgrams.Load().Port() }

// News implements conn.Datagrams.
func (d datagramGateway) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	d.g.dgrams.Load().News(t, port, gateway)
}

// Shards call no method that waits.
var (
	_ datagram.Steering = ebpf.Prompt(nil)
	_ conn.Steering     = ebpf.Prompt(nil)
)
