package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/resolution"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// PacketConn is a datagram rsocket: a UDP socket, and a UD queue pair on each device that it may use. Datagrams go from
// queue pair to queue pair if both sides have one, and otherwise over UDP; resolving that never delays a datagram.
// Datagrams may be lost, duplicated and reordered, as on every datagram socket. It implements [net.PacketConn]; any
// number of goroutines may call its methods.
type PacketConn struct {
	socket     udpSocket
	port       uint16
	devices    []*packetDevice
	limit4     int // maximum payload to rsockets over IPv4; limit6 over IPv6
	limit6     int
	queue      *packetQueue
	writeLimit Deadline
	counters   packetCounters
	reader     sync.WaitGroup
	wants      chan *resolution.Want // address handles to make
	maker      sync.WaitGroup
	opened     chan struct{} // closed at the end of ListenPacket
	closed     atomic.Bool
	closing    sync.Once
	closeErr   error

	mu    sync.Mutex // guards table
	table *resolution.Table
}

var _ net.PacketConn = (*PacketConn)(nil)

// ListenPacket makes a socket. An unspecified address stands for all addresses of its IP version; the unspecified IPv6
// address and the zero AddrPort stand for those of both versions. Port 0 stands for any free port.
func (c *PacketListenConfig) ListenPacket(ctx context.Context, local netip.AddrPort) (*PacketConn, error) {
	p, err := c.listenPacket(ctx, local)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(local), Err: bare(err)}
	}
	return p, nil
}

func (c *PacketListenConfig) listenPacket(ctx context.Context, local netip.AddrPort) (*PacketConn, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	cfg := c.withDefaults()
	network, address := "udp", local.String()
	switch {
	case !local.Addr().IsValid():
		address = fmt.Sprintf(":%d", local.Port())
	case local.Addr().Is4():
		network = "udp4"
	}
	var lc net.ListenConfig
	udp, err := lc.ListenPacket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p := &PacketConn{queue: newPacketQueue(cfg.RecvBuffer), opened: make(chan struct{}), wants: make(chan *resolution.Want, maxWants)}
	p.table = resolution.New((*packetHost)(p), cfg.Destinations, cfg.Plain)
	err = p.open(&cfg, udp.(*net.UDPConn))
	close(p.opened)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (c *PacketConn) open(cfg *PacketListenConfig, udp *net.UDPConn) error {
	if err := c.socket.Open(udp); err != nil {
		return err
	}
	c.port = c.socket.Local.Port()
	c.limit4, c.limit6 = packetLimit-rsocket.ResolveHeader4Len, packetLimit-rsocket.ResolveHeader6Len
	devices := c.chooseDevices(cfg)
	for i, d := range devices {
		if err := d.stack.own(c); err != nil {
			return fmt.Errorf("device %s: %w", d.stack.dev.Name(), err)
		}
		c.devices = devices[:i+1]
		if err := d.open(cfg); err != nil {
			return fmt.Errorf("device %s: %w", d.stack.dev.Name(), err)
		}
	}
	c.reader.Add(1)
	go c.receiveUDP()
	c.maker.Go(c.makeHandles)
	return nil
}

// chooseDevices returns the devices that the socket uses.
func (c *PacketConn) chooseDevices(cfg *PacketListenConfig) (devices []*packetDevice) {
	for _, s := range cfg.Stacks {
		gids := s.dev.Port().GIDs
		if !c.uses(gids) {
			continue
		}
		mtu := s.dev.Port().ActiveMTU.Bytes()
		c.limit4, c.limit6 = min(c.limit4, mtu-rsocket.DatagramHeader4Len), min(c.limit6, mtu-rsocket.DatagramHeader6Len)
		devices = append(devices, &packetDevice{conn: c, index: len(devices), stack: s, gids: gids})
	}
	return devices
}

// uses reports whether the socket sends from one of the addresses.
func (c *PacketConn) uses(gids []verbs.GIDEntry) bool {
	local := c.socket.Local.Addr()
	for _, g := range gids {
		if a := g.GID.Addr(); c.socket.Wild && (a.Is4() || !local.Is4()) || a == local.WithZone("") {
			return true
		}
	}
	return false
}

// MaxPayload returns the size of the largest datagram that an rsocket at that address can be sent, on either path.
// Peers that are not rsockets take whatever UDP does.
func (c *PacketConn) MaxPayload(remote netip.Addr) int {
	if remote.Unmap().Is4() {
		return c.limit4
	}
	return c.limit6
}

// packetHost implements resolution.Devices.
type packetHost PacketConn

// Path implements resolution.Devices.
func (c *packetHost) Path(local netip.Addr, remote netip.AddrPort) resolution.Path {
	if !local.IsValid() {
		if local = c.socket.Local.Addr(); c.socket.Wild {
			local = route(remote)
		}
	}
	p := resolution.Path{Dev: -1, Source: local.WithZone(""), OOB: c.socket.From(local)}
	if p.Source.Is4() != remote.Addr().Is4() { // no route: the system decides when sending
		p.Source = netip.IPv6Unspecified()
		if remote.Addr().Is4() {
			p.Source = netip.IPv4Unspecified()
		}
		return p
	}
	if i := slices.IndexFunc(c.devices, func(d *packetDevice) bool { return d.serves(p.Source, remote) }); i >= 0 {
		p.Dev, p.Most = i, c.devices[i].sendLen
	}
	return p
}

// QPN implements resolution.Devices.
func (c *packetHost) QPN(dev int) uint32 {
	if dev < 0 {
		return 0
	}
	return c.devices[dev].qpn.Load()
}

// maxWants bounds the address handles that wait to be made.
const maxWants = 64

var errManyWants = errors.New("too many address handles are being made")

// want queues an address handle to be made.
func (c *PacketConn) want(w *resolution.Want) {
	select {
	case c.wants <- w:
	default:
		c.made(w, nil, errManyWants)
	}
}

// makeHandles is the goroutine that makes address handles. An adapter may take seconds to resolve a neighbour, so
// neither mu nor the vector's token is held meanwhile.
func (c *PacketConn) makeHandles() {
	for w := range c.wants {
		c.mu.Lock()
		wanted := c.table.Wanted(w)
		c.mu.Unlock()
		if wanted && !c.closed.Load() {
			handle, err := c.devices[w.Path.Dev].handle(w.Path.Source, w.Addr.Addr())
			c.made(w, handle, err)
		}
	}
}

func (c *PacketConn) made(w *resolution.Want, handle verbs.AH, err error) {
	c.mu.Lock()
	ev := c.table.Made(time.Now(), w, handle, err)
	c.mu.Unlock()
	if ev.Probe > 0 {
		c.sendProbe(&ev.Peer, ev.Probe)
	}
}

// LocalAddr returns the socket's address.
func (c *PacketConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.socket.Local) }

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (c *PacketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time at which reads fail; zero: never.
func (c *PacketConn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", nil, net.ErrClosed)
	}
	c.queue.limit.Set(t, c.queue.wake)
	return nil
}

// SetWriteDeadline sets the time at which writes fail; zero: never.
func (c *PacketConn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", nil, net.ErrClosed)
	}
	c.writeLimit.Set(t, func() {
		for _, d := range c.devices {
			d.wake()
		}
	})
	if err := c.socket.UDP.SetWriteDeadline(t); err != nil {
		return c.opError("set", nil, bare(err))
	}
	return nil
}

// Close closes the socket and ends calls in progress. Datagrams written before are still sent, for a limited time;
// those not read are lost.
func (c *PacketConn) Close() error {
	c.closing.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *PacketConn) close() error {
	<-c.opened
	c.closed.Store(true)
	c.queue.close(net.ErrClosed)
	c.writeLimit.Stop()
	var errs []error
	for _, d := range c.devices {
		d.shut()
	}
	if c.socket.UDP != nil {
		errs = append(errs, c.socket.UDP.Close())
	}
	c.reader.Wait()
	close(c.wants)
	c.maker.Wait()
	for _, d := range c.devices {
		d.qpn.Store(0)
	}
	c.mu.Lock()
	c.table.Clear()
	c.mu.Unlock()
	for _, d := range c.devices {
		errs = append(errs, d.close())
		d.stack.disown(c)
	}
	return errors.Join(errs...)
}

func (c *PacketConn) opError(op string, remote *netip.AddrPort, err error) error {
	e := &net.OpError{Op: op, Net: "udp", Source: c.LocalAddr(), Err: err}
	if remote != nil {
		e.Addr = net.UDPAddrFromAddrPort(*remote)
	}
	return e
}
