package datagram

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// Providers returns the providers of connections as the datagram engine sees them on its
// shard. hw says how packets of RDMA adapters are marked, and whether devices of the other
// kind may be at the other end.
func Providers(all []carrier.Provider, shard *loop.Shard, hw config.HW) (list []Provider) {
	for _, prov := range all {
		switch prov := prov.(type) {
		case *carrier.Shm:
			list = append(list, shmMemory{prov, shard})
		case *carrier.Soft:
			list = append(list, softNetwork{prov, shard, hw.Mixed == config.SwitchOn})
		case *carrier.Hardware:
			if prov.Kind() != negotiate.CarrierHW { // datagrams cannot address an InfiniBand port
				continue
			}
			list = append(list, hwNetwork{prov, shard, hw})
		}
	}
	return list
}

// softNetwork is the soft device for an engine on shard.
type softNetwork struct {
	of    *carrier.Soft
	shard *loop.Shard
	mixed bool
}

// Kind implements Provider.
func (softNetwork) Kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// DeviceAt implements network.
func (d softNetwork) DeviceAt(local, _ netip.Addr) (dev device, err error) {
	at, err := d.of.PortOf(local)
	if err != nil {
		return dev, err
	}
	return device{
		Device: at.Unit.Device, Port: at.Unit.Port, GID: at.GID, Mixed: d.mixed,
		Hold: func() (*loop.Queue, func(), error) { return d.of.Hold(at.Unit, d.shard) },
	}, nil
}

// hwNetwork is the RDMA adapters for an engine on shard.
type hwNetwork struct {
	of    *carrier.Hardware
	shard *loop.Shard
	cfg   config.HW
}

// Kind implements Provider.
func (hwNetwork) Kind() negotiate.CarrierKind { return negotiate.CarrierHW }

// DeviceAt implements network.
func (d hwNetwork) DeviceAt(local, remote netip.Addr) (dev device, err error) {
	at, err := d.of.DatagramsAt(local, remote)
	if err != nil {
		return dev, err
	}
	return device{
		Device: at.Device, Port: at.Port, GID: at.GID,
		TrafficClass: d.cfg.TrafficClass, ServiceLevel: d.cfg.ServiceLevel(), Mixed: d.cfg.Mixed == config.SwitchOn,
		Hold: func() (*loop.Queue, func(), error) { return at.Hold(d.shard, queueNeed) },
	}, nil
}

// shmMemory is the shm device for an engine on shard.
type shmMemory struct {
	of    *carrier.Shm
	shard *loop.Shard
}

// Kind implements Provider.
func (shmMemory) Kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

// SharedDevice implements memory.
func (d shmMemory) SharedDevice() device {
	return device{Device: d.of.Device, Queue: d.of.Queue(d.shard), Port: d.of.Device.Port()}
}

// Offered implements memory.
func (d shmMemory) Offered(to netip.Addr) (memoryPeer, error) {
	p, err := d.of.PeerFor(to, false)
	if errors.Is(err, carrier.ErrNotHere) {
		return memoryPeer{}, nil
	}
	return d.peer(p), err
}

// Known implements memory.
func (d shmMemory) Known(key [16]byte) memoryPeer { return d.peer(d.of.Known(key)) }

// Attach implements memory.
func (d shmMemory) Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (memoryPeer, error) {
	p, err := d.of.Attach(ctx, from, name, key)
	return d.peer(p), err
}

// peer converts a peer to the engine's view; nil becomes the zero value.
func (d shmMemory) peer(p *carrier.ShmPeer) memoryPeer {
	if p == nil {
		return memoryPeer{}
	}
	return memoryPeer{Peer: p.Peer, Hold: func() (leave func()) {
		d.of.Hold(p)
		return sync.OnceFunc(func() { d.of.Leave(p) })
	}}
}
