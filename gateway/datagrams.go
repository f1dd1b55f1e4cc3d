package gateway

import (
	"net/netip"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// pastDatagrams are the histories of UDP, kept apart because pairs of ends come and go by the
// thousand and must not displace connections.
type pastDatagrams struct{ closed, native *report.History }

// wantsDatagrams reports whether the configuration wants datagrams carried.
func (e *engine) wantsDatagrams() bool { return e.cfg.WantsDatagrams() }

// openDatagrams starts the datagram engine, unless it is running, no rule is about datagrams,
// the port is disabled or taken by a successor, or the host cannot steer them. An engine that
// fails to start is left out like a carrier: datagrams stay native, the status says so, and
// the chores retry.
func (e *engine) openDatagrams() (opened bool) {
	e.opening.Lock()
	defer e.opening.Unlock()
	h := e.host
	if h.Datagrams == nil || !e.wantsDatagrams() || e.dgrams.Load() != nil || e.yielded || e.ends() || e.g.stopping.Load() {
		return false
	}
	d, err := datagram.Open(datagram.Config{
		GatewayID: e.env.GatewayID, HostID: e.env.HostID, Port: e.cfg.DatagramPort.Port(), Only: h.datagramAddr, OwnPorts: e.cfg.OwnPorts(),
		Keys: e.env.Keys.Load(), Policy: e.env.Policy, Shard: e.shards[0], TUN: h.AppTUN, Steering: h.Datagrams,
		Providers: datagram.Providers(e.env.Providers), Gateway: datagramGateway{e}, Log: e.g.log,
	})
	if err != nil {
		if e.noDatagrams.Swap(&err) == nil {
			e.g.log.Warn("datagrams left out, until the port is free", "error", err)
		}
		return false
	}
	if e.noDatagrams.Swap(nil) != nil {
		e.g.log.Info("datagrams are carried")
	}
	e.dgrams.Store(d)
	return true
}

// reopenDatagrams starts an engine that is missing while the gateway serves.
func (e *engine) reopenDatagrams() {
	if e == nil || !e.openDatagrams() {
		return
	}
	e.g.reloading.Lock() // reloads change the mode, too
	defer e.g.reloading.Unlock()
	e.settleDatagrams(e.g.mode())
}

// settleDatagrams carries datagrams or makes them native, as mode, off switch and drain
// require. The caller holds g.reloading, so that the last of several concurrent changes takes
// effect last.
func (e *engine) settleDatagrams(mode report.Mode) {
	d := e.datagrams()
	switch {
	case d == nil:
	case e.g.off.Load():
		d.Quiesce(negotiate.ReasonOff)
	case e.g.drainer.Info() != nil:
		d.Quiesce(negotiate.ReasonDrained)
	case mode != report.ModeEnforce:
		d.Quiesce(negotiate.ReasonMode)
	default:
		d.Resume()
	}
}

// yieldDatagrams stops the engine while the gateway keeps running, and leaves its port to a
// successor.
func (e *engine) yieldDatagrams() {
	e.opening.Lock()
	defer e.opening.Unlock()
	e.yielded = true
	e.dgrams.Load().Leave()
	e.g.tally.End(func(s *report.Snapshot) {
		e.dgrams.Load().Snapshot(s)
		e.dgrams.Store(nil)
	})
}

// takeBackDatagrams undoes yieldDatagrams. If a successor still has the port, the chores
// retry later.
func (e *engine) takeBackDatagrams() {
	e.opening.Lock()
	e.yielded = false
	e.opening.Unlock()
	e.reopenDatagrams()
}

// datagramGateway is the gateway as the datagram engine sees it, and the datagram engine as
// connections see it.
type datagramGateway struct{ e *engine }

func (d datagramGateway) NextID() uint64 { return d.e.g.nextID.Add(1) }

func (d datagramGateway) MaxFlows() int { return d.e.g.live.Load().Limits.MaxFlows }

func (d datagramGateway) Off() bool { return d.e.g.off.Load() }

func (d datagramGateway) NamesPeer(a netip.Addr) bool { return d.e.g.live.Load().NamesDatagramPeer(a) }

func (d datagramGateway) Proven(a netip.Addr, by report.Carrier) { d.e.peers.Proven(a, by) }

func (d datagramGateway) NoCommonKey(a netip.Addr) { d.e.g.keys.NoCommonKey(a, report.SideClient) }

func (d datagramGateway) Ended(c report.ConnInfo) {
	d.e.g.udp.closed.Add(c)
	d.e.g.lines.Ended(c)
}

// Port implements conn.Datagrams.
func (d datagramGateway) Port() uint16 { return d.e.dgrams.Load().Port() }

// News implements conn.Datagrams.
func (d datagramGateway) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	d.e.dgrams.Load().News(t, port, gateway)
}

// Shards call only methods that do not block.
var (
	_ datagram.Steering = ebpf.Prompt(nil)
	_ conn.Steering     = ebpf.Prompt(nil)
)
