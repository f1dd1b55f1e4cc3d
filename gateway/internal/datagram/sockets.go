package datagram

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/negotiate/resolve"
)

// errNotHere tells the log that this host has no path to a peer.
var errNotHere = errors.New("no way to the peer from here")

// queriesPerSecond bounds the messages from unknown hosts that reach the shard.
const queriesPerSecond = 200

// sockets holds the sockets of the datagram port, one per family. They are unconnected; each
// answer is sent from the address that was queried.
type sockets struct {
	e     *engine
	limit *rate.Limiter
	conns []*net.UDPConn
	loops sync.WaitGroup

	mu    sync.Mutex                      // guards asked
	asked map[resolve.QueryNonce]struct{} // nonces of recent queries: an answer to one bypasses the limit
}

// openSockets binds the port on all addresses, or on one.
func openSockets(e *engine) (*sockets, error) {
	s := &sockets{e: e, limit: rate.NewLimiter(queriesPerSecond, queriesPerSecond), asked: map[resolve.QueryNonce]struct{}{}}
	for i, at := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if only := e.cfg.Only; only.IsValid() {
			if only.Is4() != at.Is4() {
				continue
			}
			at = only
		}
		network := []string{"udp4", "udp6"}[i]
		c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, e.cfg.Port)))
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // a kernel without IPv6
		}
		if err == nil {
			s.conns = append(s.conns, c)
			err = askDestination(c, at.Is4())
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("datagram port: %w", err)
		}
	}
	return s, nil
}

// askDestination makes the socket report the address to which a datagram was sent.
func askDestination(c *net.UDPConn, v4 bool) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	level, opt := unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	if v4 {
		level, opt = unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	if cerr := rc.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, opt, 1) }); cerr != nil {
		return cerr
	}
	return err
}

// start starts reading.
func (s *sockets) start() {
	for _, c := range s.conns {
		s.loops.Go(func() { s.read(c) })
	}
}

// read passes received messages to the shard until the socket is closed.
func (s *sockets) read(c *net.UDPConn) {
	var b [resolve.MaxQueryLen + 1]byte
	var oob [128]byte
	for {
		n, on, _, from, err := c.ReadMsgUDPAddrPort(b[:], oob[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // an ICMP error about something sent earlier
			continue
		}
		local, ok := destination(oob[:on])
		if !ok || n > resolve.MaxQueryLen || !s.answers(b[:n]) && !s.limit.Allow() {
			s.e.count.ignored.Add(1)
			continue
		}
		msg := append([]byte(nil), b[:n]...)
		at := netip.AddrPortFrom(local, s.e.cfg.Port)
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		s.e.s.Post(func() { s.e.unlessStopped(func(e *engine) { e.message(at, from, msg) }) })
	}
}

// ask records a query about to be sent.
func (s *sockets) ask(msg []byte) {
	nonce, ok := resolve.QueryNonceOf(msg)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) >= waysMost { // most of them are finished
		dropOne(s.asked)
	}
	s.asked[nonce] = struct{}{}
}

// answers reports whether a message answers a query. It returns true once per query sent.
func (s *sockets) answers(msg []byte) bool {
	nonce, ok := resolve.AnswerNonceOf(msg)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok = s.asked[nonce]
	delete(s.asked, nonce)
	return ok
}

// dropOne deletes an arbitrary entry of a map.
func dropOne[K comparable, V any](m map[K]V) {
	for k := range m {
		delete(m, k)
		return
	}
}

// destination returns the address to which a datagram was sent.
func destination(oob []byte) (netip.Addr, bool) {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return netip.Addr{}, false
		}
		oob = rest
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			return netip.AddrFrom4([4]byte(data[8:12])), true // ipi_addr
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			return netip.AddrFrom16([16]byte(data[:16])), true
		}
	}
	return netip.Addr{}, false
}

// send sends a message from an address of this host. It never blocks, since the shard calls
// it: a full socket buffer loses the message. (A write deadline is no alternative: on a busy
// machine it can expire before the first attempt.)
func (s *sockets) send(m resolve.SendResolution) error {
	s.ask(m.Bytes)
	var oob []byte
	if m.From.Is4() {
		oob = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: m.From.As4()})
	} else {
		oob = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: m.From.As16()})
	}
	for _, c := range s.conns {
		if c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Is4() == m.From.Is4() {
			return sendAtOnce(c, m.Bytes, oob, sockaddr.Of(m.To))
		}
	}
	return errNotHere
}

// sendAtOnce makes a single attempt.
func sendAtOnce(c *net.UDPConn, b, oob []byte, to unix.Sockaddr) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	tried := rc.Write(func(fd uintptr) bool {
		_, err = unix.SendmsgN(int(fd), b, oob, to, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	return errors.Join(tried, err)
}

func (s *sockets) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.loops.Wait()
}
