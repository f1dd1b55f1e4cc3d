package socket

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rsocket"
)

// ReadFrom reads a datagram. What does not fit into b is lost.
func (c *PacketConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return n, net.UDPAddrFromAddrPort(from), nil
}

// ReadFromUDPAddrPort is ReadFrom without allocation.
func (c *PacketConn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	if len(c.devices) == 1 && !c.queue.Ready() {
		c.devices[0].vec.Spin(c.queue)
	}
	n, from, err := c.queue.pop(b)
	if err != nil {
		return 0, from, c.opError("read", nil, err)
	}
	return n, from, nil
}

// readErrors is how many consecutive errors, other than being closed, end the reading of the UDP socket.
const readErrors = 16

// maxUDP exceeds the size of any UDP datagram.
const maxUDP = 1 << 16

// receiveUDP is the goroutine that reads the UDP socket.
func (c *PacketConn) receiveUDP() {
	defer c.reader.Done()
	buf := make([]byte, maxUDP)
	for errs := 0; ; {
		n, from, to, err := c.socket.Receive(buf)
		switch {
		case err == nil:
			errs = 0
			c.receivedUDP(buf[:n], from, to)
		case c.closed.Load() || errors.Is(err, net.ErrClosed):
			return
		default:
			if errs++; errs == readErrors {
				c.queue.close(err)
				return
			}
		}
	}
}

func (c *PacketConn) receivedUDP(b []byte, from netip.AddrPort, to netip.Addr) {
	c.mu.Lock()
	ev := c.table.ReceiveUDP(time.Now(), from, to, b)
	c.mu.Unlock()
	if ev.Payload != nil {
		n := &c.counters.receivedUDP
		if ev.Plain {
			n = &c.counters.receivedPlain
		}
		c.deliver(from, ev.Payload, n)
	}
	if ev.Answer {
		h := rsocket.ResolveHeader{Op: rsocket.ResolveCtrl, QPN: ev.QPN, Probes: true, Addr: ev.Path.Source}
		if err := c.socket.Answer(&h, ev.Path.OOB, from); err != nil {
			c.counters.ctrlErrors.Add(1)
		} else {
			c.counters.answers.Add(1)
		}
	}
	if ev.Probe > 0 {
		c.sendProbe(&ev.Peer, ev.Probe)
	}
	if ev.Want != nil {
		c.want(ev.Want)
	}
}

func (c *PacketConn) deliver(from netip.AddrPort, payload []byte, n *atomic.Uint64) {
	if !c.queue.push(from, payload, n) {
		c.counters.overflow.Add(1)
	}
}
