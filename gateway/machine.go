package gateway

import (
	"net/netip"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// localHost is the machine a gateway runs on.
type localHost struct {
	Steering host.Steering
	Legs     host.Legs
	// Link is the wire side of the steering, for the wire legs' TCP.
	Link link.Link
	// Datagrams steers those of UDP programs; nil on hosts that cannot.
	Datagrams datagram.Steering
	// AppTUN is the descriptor that steered datagrams are read from and others are
	// written to, non-blocking, with a virtio_net_hdr of 10 bytes. The host closes it
	// after the gateway.
	AppTUN int
	// Beside lets another gateway take over on this host; nil on hosts that cannot.
	Beside host.Beside
	// Addrs returns the addresses at which RDMA over UDP can be done now; nil on
	// hosts without a network of their own.
	Addrs func() ([]netip.Addr, error)
	// Devices lists the network devices whose connections are looked at, and notes why others
	// that should be are not; nil: it is not known.
	Devices func() (looked, missing []string)
	// Route returns the number of the network device by which the host sends from one
	// address to another; nil where that is not known.
	Route func(from, to netip.Addr) (ifindex int, err error)
	// Owners tells whose the sockets of the host are; nil on hosts without processes.
	Owners func([]process.Socket) (map[process.Socket]process.Owner, error)
	// RoCE returns the addresses for which RDMA adapters of the host speak RoCE v2; nil
	// on a host without any.
	RoCE func() (sysfs.RoCEPorts, error)
	// RDMA returns all that the kernel tells of adapters; nil as RoCE.
	RDMA func() (sysfs.RDMA, error)
	// Priority is the SO_PRIORITY by which the steering knows the gateway's own
	// sockets; 0: it needs none.
	Priority int
	// ID names the kernel: gateways with the same one can share memory.
	ID [16]byte
	// Version is that of the program, which peers are told.
	Version string

	// datagramAddr is the only address that is asked at the datagram port; zero:
	// all of them are.
	datagramAddr netip.Addr
	// faults are those that a test wants; nil: none.
	faults faults.Injector
	// promotion serves programs with the library; nil: nothing does.
	promotion *promotion.Service
	// unsteered is why connections are not steered although they should be; nil: they are.
	unsteered error
}
