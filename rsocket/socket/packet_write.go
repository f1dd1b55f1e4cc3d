package socket

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/resolution"

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
	case c.writeLimit.Expired():
		return os.ErrDeadlineExceeded
	case !to.IsValid():
		return syscall.EDESTADDRREQ
	case to.Addr().Is6() && c.socket.Local.Addr().Is4(), to.Addr().Is4() && c.socket.Local.Addr().Is6() && !c.socket.Wild:
		return syscall.EAFNOSUPPORT
	}
	c.mu.Lock()
	if len(b) > c.MaxPayload(to.Addr()) && !c.table.IsPlain(to) {
		c.mu.Unlock()
		return syscall.EMSGSIZE
	}
	how := c.table.Send(time.Now(), to)
	c.mu.Unlock()
	if how.Probe > 0 {
		c.sendProbe(&how.Peer, how.Probe)
	}
	switch how.Way {
	case resolution.UD:
		return count(&c.counters.sentUD, c.devices[how.Peer.Dev].send(&how.Peer, b))
	case resolution.Data:
		h := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: how.QPN, Probes: how.QPN != 0, Addr: how.Path.Source}
		return count(&c.counters.sentUDP, c.socket.Send(&h, b, how.Path.OOB, to))
	default:
		return count(&c.counters.sentPlain, c.socket.Send(nil, b, how.Path.OOB, to))
	}
}

// bare removes the *net.OpError that package net put around an error.
func bare(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// count increments n if err is nil.
func count(n *atomic.Uint64, err error) error {
	if err == nil {
		n.Add(1)
	}
	return err
}

func (c *PacketConn) sendProbe(p *resolution.PeerQP, size int) {
	d := c.devices[p.Dev]
	if d.control(p, resolution.Probe, size) {
		c.counters.probes.Add(1)
		d.vec.Kick()
	}
}
