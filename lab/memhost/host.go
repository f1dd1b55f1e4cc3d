package memhost

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/smcgw/smcgw/netstack"
)

// Host is a host in memory: addresses, a kernel for applications, a wire to
// the switch of its network, and a gateway when one was started.
type Host struct {
	net    *Network
	name   string
	v4, v6 netip.Addr
	wire   *link.Wire // A is our end, B the switch's
	link   *link.Pipe
	kernel *netstack.Host
	box    box

	model atomic.Pointer[Model] // nil: nothing is steered

	mu      sync.Mutex // guards gateway
	gateway *Gateway
}

func newHost(n *Network, name string, v4, v6 netip.Addr, seed uint64) (*Host, error) {
	h := &Host{net: n, name: name, v4: v4, v6: v6, wire: link.NewWire(n.cfg.MTU, seed)}
	h.link = link.NewPipe(n.cfg.MTU, h.fromKernel)
	k, err := netstack.NewHost(netstack.HostConfig{Link: h.link, Addrs: []netip.Addr{v4, v6}})
	if err != nil {
		h.wire.Close()
		return nil, err
	}
	h.kernel = k
	h.wire.A().Handle(h.fromWire)
	h.wire.B().Handle(n.forward)
	h.SetFaults(Faults{})
	return h, nil
}

// Name is the name of the host.
func (h *Host) Name() string { return h.name }

// Addr4 is the host's IPv4 address.
func (h *Host) Addr4() netip.Addr { return h.v4 }

// Addr6 is the host's IPv6 address.
func (h *Host) Addr6() netip.Addr { return h.v6 }

// Dial is connect() of an application on this host. network is tcp, tcp4 or
// tcp6, address an IP address and a port; it fits http.Transport.DialContext.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return h.DialFrom(ctx, netip.AddrPort{}, to)
}

// DialFrom is Dial from a given address and port; zero lets the host choose.
func (h *Host) DialFrom(ctx context.Context, local, remote netip.AddrPort) (*netstack.HostConn, error) {
	return h.kernel.Dial(ctx, local, remote)
}

// Listen is listen() of an application on this host, for both families: it
// returns a listener of each, on the same port. Port 0 lets the host choose.
func (h *Host) Listen(port uint16) (v4, v6 net.Listener, err error) {
	l4, err := h.kernel.Listen(netip.AddrPortFrom(h.v4, port))
	if err != nil {
		return nil, nil, err
	}
	port = uint16(l4.Addr().(*net.TCPAddr).Port)
	l6, err := h.kernel.Listen(netip.AddrPortFrom(h.v6, port))
	if err != nil {
		return nil, nil, errors.Join(err, l4.Close())
	}
	return l4, l6, nil
}

// fromKernel gets what the applications' kernel sends.
func (h *Host) fromKernel(pkt []byte) {
	if m := h.model.Load(); m != nil {
		m.egress(pkt)
		return
	}
	h.transmit(pkt)
}

// fromWire gets what arrives from the switch.
func (h *Host) fromWire(pkt []byte) {
	if m := h.model.Load(); m != nil {
		m.ingress(pkt)
		return
	}
	h.link.Inject(pkt)
}

// transmit puts a packet on the wire.
func (h *Host) transmit(pkt []byte) { h.wire.A().Send(pkt) }

func (h *Host) close() { _ = h.kernel.Close() } // its error is always nil
