package socket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
)

// Dialer makes connections. Stack must be set.
type Dialer struct {
	Stack *Stack
	// LocalAddr is the address and port to dial from; zero: any of the device.
	LocalAddr netip.AddrPort
	// Timeout bounds a Dial, and a DialContext with the name's lookup and all its addresses; 0: as long as the
	// communication manager tries.
	Timeout time.Duration
	// Config configures the connections.
	Config ConnConfig
}

// DialContext connects to an address as net.Dialer does; network is tcp, tcp4 or tcp6. It tries the addresses of a name
// in turn, with an equal share of the time each.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.limited(ctx)
	defer cancel()
	addrs, err := resolve(ctx, network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	var first error
	for i, a := range addrs {
		part, cancel := partOf(ctx, len(addrs)-i)
		c, err := d.Dial(part, a)
		cancel()
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// limited bounds an attempt by Timeout.
func (d *Dialer) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.Timeout > 0 {
		return context.WithTimeout(ctx, d.Timeout)
	}
	return ctx, func() {}
}

// leastPart is the minimum time for an attempt at one address, as in package net.
const leastPart = 2 * time.Second

// partOf bounds the attempt at the first of n remaining addresses.
func partOf(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(leastPart, time.Until(end)/time.Duration(n)))
}

// resolve looks up host and port.
func resolve(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	family := map[string]string{"tcp": "ip", "tcp4": "ip4", "tcp6": "ip6"}[network]
	if family == "" {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, network, service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "localhost"
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, family, host)
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	if len(all) == 0 {
		return nil, &net.AddrError{Err: "no suitable address", Addr: address}
	}
	return all, nil
}

// Dial connects to a service. A refusal is ECONNREFUSED; a peer with another version of the protocol is ENOTSUP.
func (d *Dialer) Dial(ctx context.Context, remote netip.AddrPort) (*Conn, error) {
	ctx, end := d.limited(ctx)
	defer end()
	ctx, cancel := d.Stack.within(ctx)
	defer cancel()
	c, err := d.dial(ctx, remote)
	if err != nil {
		err := &net.OpError{Op: "dial", Net: "rsocket", Addr: net.TCPAddrFromAddrPort(remote), Err: timely(err)}
		if d.LocalAddr.IsValid() {
			err.Source = net.TCPAddrFromAddrPort(d.LocalAddr)
		}
		return nil, err
	}
	d.Stack.counters.dialed.Add(1)
	return c, nil
}

// timely maps a timeout to the error that package net uses for it: *net.OpError asks only the error itself whether it
// is a timeout, not what that wraps.
func timely(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, expired):
		return expired
	case errors.Is(err, syscall.ETIMEDOUT): // the peer or the kernel has given up
		return syscall.ETIMEDOUT
	default:
		return err
	}
}

func (d *Dialer) dial(ctx context.Context, remote netip.AddrPort) (*Conn, error) {
	s := d.Stack
	m, err := s.managed()
	if err != nil {
		return nil, err
	}
	c, err := s.newConn(d.Config)
	if err != nil {
		return nil, err
	}
	joined, err := m.Dial(ctx, cm.DialParams{
		QPParams: c.params(), Local: d.LocalAddr, Remote: remote, PrivateData: c.ep.ConnData().Append(nil),
	})
	if err != nil {
		return nil, errors.Join(err, c.discard())
	}
	peer, err := rsocket.ParseConnData(joined.PrivateData())
	if err == nil {
		err = c.joinPeer(peer)
	}
	if err == nil {
		err = c.begin(joined)
	}
	if err != nil {
		_ = disconnect(joined)
		return nil, errors.Join(err, c.discard())
	}
	joined.AfterDone(func() { c.lost(joined.Err()) })
	return c, nil
}

// params returns the parameters of rdma-core (rsocket.c rs_do_connect), but without READs and with one retry less than
// the maximum: Linux's software RoCE retries forever at the maximum (rxe_comp.c) and would never detect that we are
// gone.
func (c *Conn) params() cm.QPParams {
	return cm.QPParams{QP: c.qp, Do: c.vec.Do, Access: peerAccess, RNRRetry: 7, RetryCount: 6}
}
