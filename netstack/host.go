package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const listenBacklog = 4096

// HostConfig configures a Host. Link is required.
type HostConfig struct {
	// Link carries the packets; it is used by one Stack or Host only.
	Link link.Link
	// Addrs are the addresses of the host.
	Addrs []netip.Addr
	// Transparent lets the host use every address as its own, as sockets with
	// IP_TRANSPARENT do: Dial from any, ListenAll on all.
	Transparent bool

	clock tcpip.Clock // tests only
}

// Host is an ordinary TCP stack without anything of ours: the kernel of the
// applications, or of the gateway's own sockets, in unprivileged tests.
type Host struct {
	stack *stack.Stack
	link  link.Endpoint

	mu     sync.Mutex // guards everything below
	closed bool
	all    *HostListener
}

// NewHost starts a host.
func NewHost(cfg HostConfig) (*Host, error) {
	if cfg.Link == nil {
		return nil, errors.New("host config: link: missing")
	}
	c := Config{clock: cfg.clock}.withDefaults()
	h := &Host{link: cfg.Link.Endpoint()}
	ep := &hostLink{}
	ep.Init(h.link, ep)
	gs, err := newGVisor(c, ep)
	if err != nil {
		discard(h.link)
		return nil, fmt.Errorf("host: %w", err)
	}
	h.stack = gs
	gs.SetPromiscuousMode(nicID, cfg.Transparent)
	gs.SetSpoofing(nicID, cfg.Transparent)
	if err := h.addAddresses(cfg.Addrs); err != nil {
		h.Close()
		return nil, fmt.Errorf("host: %w", err)
	}
	fw := tcp.NewForwarder(gs, 0, listenBacklog, h.forwarded)
	gs.SetTransportProtocolHandler(tcp.ProtocolNumber, func(id stack.TransportEndpointID, p *stack.PacketBuffer) bool {
		return h.listener() != nil && fw.HandlePacket(id, p)
	})
	return h, nil
}

func (h *Host) addAddresses(addrs []netip.Addr) error {
	for _, a := range addrs {
		full, proto := fullAddress(netip.AddrPortFrom(a.Unmap(), 0))
		terr := h.stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol: proto, AddressWithPrefix: full.Addr.WithPrefix(),
		}, stack.AddressProperties{})
		if terr != nil {
			return fmt.Errorf("address %v: %s", a, terr)
		}
	}
	return nil
}

// hostLink keeps everything but TCP off the wire: router solicitations and
// group reports would only disturb packet counting tests.
type hostLink struct{ nested.Endpoint }

// WritePackets implements stack.LinkWriter.
func (e *hostLink) WritePackets(l stack.PacketBufferList) (int, tcpip.Error) {
	var out stack.PacketBufferList
	for _, p := range l.AsSlice() {
		if p.TransportProtocolNumber == header.TCPProtocolNumber {
			out.PushBack(p)
		}
	}
	if out.Len() == 0 {
		return l.Len(), nil
	}
	return e.Endpoint.WritePackets(out)
}

// Dial connects to remote. A zero local lets the host choose; a zero port of it
// only the port. Errors are those of the net package (syscall.ECONNREFUSED, ...).
func (h *Host) Dial(ctx context.Context, local, remote netip.AddrPort) (*HostConn, error) {
	c, err := h.dial(ctx, local, remote)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(remote), Err: err}
	}
	return c, nil
}

func (h *Host) dial(ctx context.Context, local, remote netip.AddrPort) (*HostConn, error) {
	to, proto := fullAddress(remote)
	wq := &waiter.Queue{}
	ep, terr := h.stack.NewEndpoint(tcp.ProtocolNumber, proto, wq)
	if terr != nil {
		return nil, mapError(terr)
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	ep.SocketOptions().SetReuseAddress(true)
	if local.Addr().IsValid() {
		from, _ := fullAddress(local)
		terr = ep.Bind(from)
	}
	if terr == nil {
		terr = ep.Connect(to)
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ready:
			terr = ep.LastError()
		case <-ctx.Done():
			ep.Close()
			return nil, context.Cause(ctx)
		}
	}
	if terr == nil && !tcpConnected(ep) {
		terr = &tcpip.ErrConnectionAborted{}
	}
	if terr != nil {
		ep.Close()
		return nil, mapError(terr)
	}
	return newHostConn(ep, wq)
}

func tcpConnected(ep tcpip.Endpoint) bool {
	switch tcp.EndpointState(ep.State()) {
	case tcp.StateEstablished, tcp.StateCloseWait:
		return true
	default:
		return false
	}
}

// Listen listens on local; an unspecified address means all of the host's.
func (h *Host) Listen(local netip.AddrPort) (*HostListener, error) {
	l, err := h.listen(local)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: net.TCPAddrFromAddrPort(local), Err: err}
	}
	return l, nil
}

func (h *Host) listen(local netip.AddrPort) (*HostListener, error) {
	full, proto := fullAddress(local)
	if local.Addr().IsUnspecified() {
		full.Addr = tcpip.Address{}
	}
	l := newHostListener(h, local)
	ep, terr := h.stack.NewEndpoint(tcp.ProtocolNumber, proto, l.wq)
	if terr != nil {
		return nil, mapError(terr)
	}
	ep.SocketOptions().SetReuseAddress(true)
	ep.SocketOptions().SetV6Only(true)
	if terr = ep.Bind(full); terr == nil {
		terr = ep.Listen(listenBacklog)
	}
	if terr != nil {
		ep.Close()
		return nil, mapError(terr)
	}
	l.ep = ep
	if a, terr := ep.GetLocalAddress(); terr == nil {
		l.addr = netip.AddrPortFrom(local.Addr(), a.Port)
	}
	return l, nil
}

// ListenAll accepts connections to every address and port no other listener
// has, as a transparent socket behind a lookup program does. The host must be
// Transparent; there is one such listener per host.
func (h *Host) ListenAll() (*HostListener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	if h.all != nil {
		return nil, errors.New("listen all: already listening")
	}
	l := newHostListener(h, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	l.queue = make(chan *HostConn, listenBacklog)
	h.all = l
	return l, nil
}

func (h *Host) listener() *HostListener {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}

// forwarded runs a handshake for ListenAll, on a goroutine of its own.
func (h *Host) forwarded(r *tcp.ForwarderRequest) {
	l := h.listener()
	if l == nil || !l.enter() {
		r.Complete(true)
		return
	}
	defer l.busy.Done()
	wq := &waiter.Queue{}
	stop := make(chan struct{})
	l.busy.Go(func() { l.expire(wq, stop) })
	ep, terr := r.CreateEndpoint(wq)
	close(stop)
	r.Complete(false)
	if terr != nil {
		return
	}
	c, err := newHostConn(ep, wq)
	if err != nil {
		ep.Abort()
		return
	}
	select {
	case l.queue <- c:
	default:
		c.Abort()
	}
}

// expire bounds a handshake in time (see Stack.wake).
func (l *HostListener) expire(wq *waiter.Queue, stop chan struct{}) {
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	quit := l.quit
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		case <-quit:
			quit = nil
		}
		wq.Notify(waiter.WritableEvents)
		t.Reset(wakeAgain)
	}
}

// wakeAgain is how often the handshakes of a listener that has ended are woken.
const wakeAgain = 20 * time.Millisecond

// Stats counts segments the host sent again and those it dropped for a wrong
// checksum.
func (h *Host) Stats() (retransmits, checksumErrors uint64) {
	t := h.stack.Stats().TCP
	return t.Retransmits.Value(), t.ChecksumErrors.Value()
}

// Close resets all connections and ends all goroutines.
func (h *Host) Close() error {
	h.mu.Lock()
	done, l := h.closed, h.all
	h.closed = true
	h.mu.Unlock()
	if done {
		return nil
	}
	if l != nil {
		_ = l.Close() // its error is always nil
	}
	h.link.Detach()
	h.stack.Destroy()
	h.link.Stop()
	return nil
}

// addrPort converts from gVisor's address type.
func addrPort(a tcpip.FullAddress) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.Addr.AsSlice())
	return netip.AddrPortFrom(ip.Unmap(), a.Port)
}
