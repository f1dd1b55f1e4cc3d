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

// localHost is the machine that a gateway runs on.
type localHost struct {
	Steering host.Steering
	Legs     host.Legs
	// Link is the wire side of the steering, used by the TCP of the wire legs.
	Link link.Link
	// Datagrams steers the datagrams of UDP programs; nil on hosts that cannot.
	Datagrams datagram.Steering
	// AppTUN is the non-blocking descriptor of the app TUN, with a virtio_net_hdr of 10
	// bytes. Steered datagrams are read from it, and others are written to it. The host
	// closes it after the gateway.
	AppTUN int
	// Beside allows another gateway to take over on this host; nil on hosts that cannot.
	Beside host.Beside
	// Addrs returns the addresses on which RDMA over UDP is possible now; nil on hosts
	// without a network of their own.
	Addrs func() ([]netip.Addr, error)
	// Devices returns the network devices whose connections are handled, and notes why others
	// that should be handled are not; nil: unknown.
	Devices func() (looked, missing []string)
	// Route returns the index of the network device through which the host sends from one
	// address to another; nil: unknown.
	Route func(from, to netip.Addr) (ifindex int, err error)
	// Owners returns the owners of sockets; nil on hosts without processes.
	Owners func([]process.Socket) (map[process.Socket]process.Owner, error)
	// RoCE returns the addresses for which RDMA adapters of the host speak RoCE v2; nil
	// on a host without any.
	RoCE func() (sysfs.RoCEPorts, error)
	// RDMA returns everything that the kernel says about adapters; nil likewise.
	RDMA func() (sysfs.RDMA, error)
	// Priority is the SO_PRIORITY by which the steering recognizes the gateway's own sockets;
	// 0: it needs none.
	Priority int
	// ID identifies the kernel: gateways with the same ID can share memory.
	ID [16]byte
	// Version is the program's version, sent to peers.
	Version string

	// datagramAddr is the only address served on the datagram port; zero: all are.
	datagramAddr netip.Addr
	// faults injects faults for tests; nil: none.
	faults faults.Injector
	// promotion serves programs with the library; nil: they are not served.
	promotion *promotion.Service
	// unsteered is why connections are not steered although they should be; nil: they are
	// steered.
	unsteered error
}
