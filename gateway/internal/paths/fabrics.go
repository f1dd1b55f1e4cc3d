package paths

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// Fabrics are the fabrics of connections as the datagram engine sees them, on its shard.
// hw says how the packets of RDMA adapters are marked, and what may be at their other end.
func Fabrics(all []carrier.Fabric, shard *loop.Shard, hw config.HW) (list []datagram.Fabric) {
	for _, fb := range all {
		switch fb := fb.(type) {
		case *carrier.Shm:
			list = append(list, memory{fb, shard})
		case *carrier.Soft:
			list = append(list, network{fb, shard, hw.Mixed == config.SwitchOn})
		case *carrier.Hardware:
			if fb.Kind() != negotiate.CarrierHW { // a datagram has no way to name a port of InfiniBand
				continue
			}
			list = append(list, adapters{fb, shard, hw})
		}
	}
	return list
}

// network is the soft device, for an engine on a shard.
type network struct {
	of    *carrier.Soft
	shard *loop.Shard
	mixed bool
}

// Kind implements datagram.Fabric.
func (network) Kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// DeviceAt implements datagram.Network.
func (d network) DeviceAt(local, _ netip.Addr) (dev datagram.Device, err error) {
	at, err := d.of.PortOf(local)
	if err != nil {
		return dev, err
	}
	return datagram.Device{
		Device: at.Unit.Device, Port: at.Unit.Port, GID: at.GID, Mixed: d.mixed,
		Hold: func() (*loop.Queue, func(), error) { return d.of.Hold(at.Unit, d.shard) },
	}, nil
}

// adapters is the RDMA adapters, for an engine on a shard.
type adapters struct {
	of    *carrier.Hardware
	shard *loop.Shard
	cfg   config.HW
}

// Kind implements datagram.Fabric.
func (adapters) Kind() negotiate.CarrierKind { return negotiate.CarrierHW }

// DeviceAt implements datagram.Network.
func (d adapters) DeviceAt(local, remote netip.Addr) (dev datagram.Device, err error) {
	at, err := d.of.DatagramsAt(local, remote)
	if err != nil {
		return dev, err
	}
	return datagram.Device{
		Device: at.Device, Port: at.Port, GID: at.GID,
		TrafficClass: d.cfg.TrafficClass, ServiceLevel: d.cfg.ServiceLevel, Mixed: d.cfg.Mixed == config.SwitchOn,
		Hold: func() (*loop.Queue, func(), error) { return at.Hold(d.shard, datagram.QueueNeed) },
	}, nil
}

// memory is the shm device, for an engine on a shard.
type memory struct {
	of    *carrier.Shm
	shard *loop.Shard
}

// Kind implements datagram.Fabric.
func (memory) Kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

// SharedDevice implements datagram.Memory.
func (d memory) SharedDevice() datagram.Device {
	return datagram.Device{Device: d.of.Device, Queue: d.of.Queue(d.shard), Port: d.of.Device.Port()}
}

// Offered implements datagram.Memory.
func (d memory) Offered(to netip.Addr) (datagram.MemoryPeer, error) {
	p, err := d.of.PeerFor(to, false)
	if errors.Is(err, carrier.ErrNotHere) {
		return datagram.MemoryPeer{}, nil
	}
	return d.peer(p), err
}

// Known implements datagram.Memory.
func (d memory) Known(key [16]byte) datagram.MemoryPeer { return d.peer(d.of.Known(key)) }

// Attach implements datagram.Memory.
func (d memory) Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (datagram.MemoryPeer, error) {
	p, err := d.of.Attach(ctx, from, name, key)
	return d.peer(p), err
}

// peer returns a peer as the engine sees it, zero for nil.
func (d memory) peer(p *carrier.ShmPeer) datagram.MemoryPeer {
	if p == nil {
		return datagram.MemoryPeer{}
	}
	return datagram.MemoryPeer{Peer: p.Peer, Hold: func() (leave func()) {
		d.of.Hold(p)
		return sync.OnceFunc(func() { d.of.Leave(p) })
	}}
}
