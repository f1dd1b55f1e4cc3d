package socket

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/rsocket"
)

// WriteTo sends a datagram to a *net.UDPAddr. A datagram beyond [PacketConn.MaxPayload] is refused with EMSGSIZE.
func (c *PacketConn) WriteTo(b []byte, to net.Addr) (int, error) {
	a, ok := to.(*net.UDPAddr)
	if !ok || a == nil {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.LocalAddr(), Addr: to, Err: syscall.EINVAL}
	}
	return c.WriteToUDPAddrPort(b, a.AddrPort())
}

// WriteToUDPAddrPort is WriteTo without allocation.
func (c *PacketConn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	to = unmapped(to)
	if err := c.write(b, to); err != nil {
		return 0, c.opError("write", &to, bare(err))
	}
	return len(b), nil
}

func (c *PacketConn) write(b []byte, to netip.AddrPort) error {
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case c.writeLimit.expired.Load():
		return os.ErrDeadlineExceeded
	case !to.IsValid():
		return syscall.EDESTADDRREQ
	case to.Addr().Is6() && c.socket.local.Addr().Is4(), to.Addr().Is4() && c.socket.local.Addr().Is6() && !c.socket.wild:
		return syscall.EAFNOSUPPORT
	}
	c.mu.Lock()
	if len(b) > c.MaxPayload(to.Addr()) && !c.table.isPlain(to) {
		c.mu.Unlock()
		return syscall.EMSGSIZE
	}
	how := c.table.send(time.Now(), to)
	c.mu.Unlock()
	if how.probe > 0 {
		c.sendProbe(&how.peer, how.probe)
	}
	switch how.way {
	case wayUD:
		return count(&c.counters.sentUD, c.devices[how.peer.dev].send(&how.peer, b))
	case wayData:
		h := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: how.qpn, Probes: how.qpn != 0, Addr: how.path.source}
		return count(&c.counters.sentUDP, c.socket.send(&h, b, how.path.oob, to))
	default:
		return count(&c.counters.sentPlain, c.socket.send(nil, b, how.path.oob, to))
	}
}

// bare takes off what package net has put around an error.
func bare(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// count counts what went well.
func count(n *atomic.Uint64, err error) error {
	if err == nil {
		n.Add(1)
	}
	return err
}

func (c *PacketConn) sendProbe(p *peerQP, size int) {
	d := c.devices[p.dev]
	if d.control(p, udProbe, size) {
		c.counters.probes.Add(1)
		d.vec.kick()
	}
}
