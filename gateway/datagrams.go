package gateway

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// pastDatagrams are the histories of UDP: pairs of ends come and go by the
// thousand, and must not displace connections.
type pastDatagrams struct{ closed, native *admin.History }

// openDatagrams starts the engine, unless no rule is about datagrams, the mode
// touches nothing, the port is configured away or the host cannot steer them. An
// engine that does not start is left out as a carrier is: datagrams stay native, and
// the status says so.
func (g *gateway) openDatagrams() {
	h := g.host
	if h.Datagrams == nil || g.cfg.Mode != config.ModeEnforce || !g.cfg.WantsDatagrams() {
		return
	}
	e, err := datagram.Open(datagram.Config{
		GatewayID: g.env.GatewayID, HostID: g.env.HostID, Port: g.cfg.DatagramPort.Port(), Only: h.datagramAddr, OwnPorts: g.cfg.OwnPorts(),
		Keys: g.env.Keys.Load(), Policy: g.env.Policy, Shard: g.shards[0], TUN: h.AppTUN, Steering: h.Datagrams,
		Fabrics: g.datagramFabrics(), Gateway: datagramGateway{g}, Log: g.log,
	})
	if err != nil {
		g.log.Warn("datagrams left out", "error", err)
		g.noDatagrams = err
		return
	}
	g.dgrams.Store(e)
}

// closeDatagrams ends the engine while the gateway goes on.
func (g *gateway) closeDatagrams() {
	g.dgrams.Load().Leave()
	g.dgrams.Store(nil)
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

func (d datagramGateway) Ended(c admin.ConnInfo) { d.g.udp.closed.Add(c) }

// Port implements conn.Datagrams.
func (d datagramGateway) Port() uint16 { return d.g.dgrams.Load().Port() }

// News implements conn.Datagrams.
func (d datagramGateway) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	d.g.dgrams.Load().News(t, port, gateway)
}

// datagramFabrics are the fabrics as the datagram engine sees them.
func (g *gateway) datagramFabrics() (list []datagram.Fabric) {
	shard := g.shards[0]
	for _, fb := range g.env.Fabrics {
		switch fb := fb.(type) {
		case *carrier.Shm:
			list = append(list, datagramMemory{fb, shard})
		case *carrier.Soft:
			list = append(list, datagramNetwork{fb, shard})
		case *carrier.Hardware:
			list = append(list, datagramAdapters{fb, shard, g.cfg.HW})
		}
	}
	return list
}

// datagramNetwork is the soft device, for an engine on a shard.
type datagramNetwork struct {
	of    *carrier.Soft
	shard *loop.Shard
}

// Kind implements datagram.Fabric.
func (datagramNetwork) Kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// DeviceAt implements datagram.Network.
func (d datagramNetwork) DeviceAt(local, _ netip.Addr) (dev datagram.Device, err error) {
	at, err := d.of.PortOf(local)
	if err != nil {
		return dev, err
	}
	return datagram.Device{Device: at.Unit.Device, Queue: at.Unit.Queue(d.shard), Port: at.Unit.Port, GID: at.GID}, nil
}

// datagramAdapters is the RDMA adapters, for an engine on a shard.
type datagramAdapters struct {
	of    *carrier.Hardware
	shard *loop.Shard
	marks config.HW
}

// Kind implements datagram.Fabric.
func (datagramAdapters) Kind() negotiate.CarrierKind { return negotiate.CarrierHW }

// DeviceAt implements datagram.Network.
func (d datagramAdapters) DeviceAt(local, remote netip.Addr) (dev datagram.Device, err error) {
	at, err := d.of.DatagramsAt(local, remote, d.shard, datagram.QueueNeed)
	if err != nil {
		return dev, err
	}
	return datagram.Device{
		Device: at.Device, Queue: at.Queue, Port: at.Port, GID: at.GID,
		TrafficClass: d.marks.TrafficClass, ServiceLevel: d.marks.ServiceLevel,
	}, nil
}

// datagramMemory is the shm device, for an engine on a shard.
type datagramMemory struct {
	of    *carrier.Shm
	shard *loop.Shard
}

// Kind implements datagram.Fabric.
func (datagramMemory) Kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

// SharedDevice implements datagram.Memory.
func (d datagramMemory) SharedDevice() datagram.Device {
	return datagram.Device{Device: d.of.Device, Queue: d.of.Queue(d.shard), Port: d.of.Device.Port()}
}

// Offered implements datagram.Memory.
func (d datagramMemory) Offered(to netip.Addr) (datagram.MemoryPeer, error) {
	p, err := d.of.PeerFor(to, false)
	if errors.Is(err, carrier.ErrNotHere) {
		return datagram.MemoryPeer{}, nil
	}
	return d.peer(p), err
}

// Known implements datagram.Memory.
func (d datagramMemory) Known(key [16]byte) datagram.MemoryPeer { return d.peer(d.of.Known(key)) }

// Attach implements datagram.Memory.
func (d datagramMemory) Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (datagram.MemoryPeer, error) {
	p, err := d.of.Attach(ctx, from, name, key)
	return d.peer(p), err
}

// peer returns a peer as the engine sees it, zero for nil.
func (d datagramMemory) peer(p *carrier.ShmPeer) datagram.MemoryPeer {
	if p == nil {
		return datagram.MemoryPeer{}
	}
	return datagram.MemoryPeer{Peer: p.Peer, Hold: func() (leave func()) {
		d.of.Hold(p)
		return sync.OnceFunc(func() { d.of.Leave(p) })
	}}
}

var _ datagram.Steering = (*ebpf.Datapath)(nil)
