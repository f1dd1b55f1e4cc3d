package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/packet"
)

// The kernel repeats a SYN by itself a second after it has sent it. One that follows
// sooner follows a refusal, if that came in the first half of the second: a test that
// has no processor for so long refuses another one.
const (
	atOnce    = 900 * time.Millisecond
	refuseIn  = 500 * time.Millisecond
	lateTries = 20
)

// refusal is an answer that says no to a SYN.
type refusal struct {
	name string
	icmp [2]uint8 // type and code, of IPv4; 0: a reset
	six  [2]uint8 // the same of IPv6
	err  error
	six6 error
}

var refusals = []refusal{
	{name: "reset", err: unix.ECONNREFUSED, six6: unix.ECONNREFUSED},
	{"prohibited", [2]uint8{3, 13}, [2]uint8{1, 1}, unix.EHOSTUNREACH, unix.EACCES},
	{"port", [2]uint8{3, 3}, [2]uint8{1, 4}, unix.ECONNREFUSED, unix.ECONNREFUSED},
	{"host", [2]uint8{3, 1}, [2]uint8{1, 3}, unix.EHOSTUNREACH, unix.EHOSTUNREACH},
	{"parameter", [2]uint8{12, 0}, [2]uint8{4, 0}, unix.EPROTO, unix.EPROTO},
}

// packet is the refusal of a SYN, sent by a router for ICMP.
func (r refusal) packet(t *testing.T, syn segment) []byte {
	t.Helper()
	if r.icmp[0] == 0 {
		return syn.reply(flagRST|flagACK, 0, nil).bytes(t)
	}
	router := netip.MustParseAddr("10.77.0.2")
	kind := r.icmp
	if syn.src.Addr().Is6() {
		router, kind = netip.MustParseAddr("fd77::2"), r.six
	}
	return icmpOf(kind, router, syn.src.Addr(), syn.bytes(t))
}

func (r refusal) error(a netip.Addr) error {
	if a.Is6() {
		return r.six6
	}
	return r.err
}

// dialled is a connect() under way.
type dialled struct {
	c     *client
	begun time.Time
	fd    int
	syn   segment
	tuple Tuple
}

// dial starts a connection of which the test wants to know the end.
func (c *client) dial(to string) *dialled {
	c.t.Helper()
	d := &dialled{c: c, begun: time.Now()}
	dst := addrPort(to)
	family := unix.AF_INET
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	var err error
	c.h1.do(func() { d.fd, d.tuple.Local, err = beginHere(family, dst) })
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = unix.Close(d.fd) })
	d.tuple.Remote = dst
	d.syn = d.next(patience)
	return d
}

// next waits for the next SYN of the connection.
func (d *dialled) next(within time.Duration) segment {
	d.c.t.Helper()
	s, ok := d.c.wire.next(within, func(s segment) bool { return s.src == d.tuple.Local && s.flags&flagSYN != 0 })
	require.True(d.c.t, ok, "no SYN within %v", within)
	return s
}

// silent says that the connection sends nothing for a while, or that the kernel was first
// to repeat its SYN.
func (d *dialled) silent() bool {
	d.c.t.Helper()
	s, ok := d.c.wire.next(100*time.Millisecond, func(s segment) bool { return s.src == d.tuple.Local })
	if ok {
		require.Greater(d.c.t, between(d.c.t, d.syn, s), atOnce)
	}
	return !ok
}

// between is the time between two segments of a connection, by the clock of the kernel that
// has sent them.
func between(t *testing.T, first, second segment) time.Duration {
	t.Helper()
	stamp := func(s segment) uint32 {
		v, ok := s.option(8)
		require.True(t, ok, "no timestamps")
		return binary.BigEndian.Uint32(v)
	}
	return time.Duration(stamp(second)-stamp(first)) * time.Millisecond
}

// ends waits for the end of connect() and returns its error.
func (d *dialled) ends() error {
	d.c.t.Helper()
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLOUT}}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if n, _ := unix.Poll(fds, 100); n > 0 {
			return sockaddr.Err(d.fd)
		}
	}
	require.Fail(d.c.t, "connect() does not end")
	return nil
}

func (d *dialled) answer(pkt ...[]byte) { d.c.h2.send(d.c.h1, pkt...) }

func (d *dialled) offers() bool {
	_, _, has := d.syn.offer()
	return has
}

// refuse answers the offered SYN by a refusal and returns the bare one after it, or that the
// kernel may have been first to repeat the SYN.
func (d *dialled) refuse(r refusal) (bare segment, inTime bool) {
	d.c.t.Helper()
	require.True(d.c.t, d.offers())
	no := r.packet(d.c.t, d.syn)
	d.answer(no, no) // some boxes say it twice
	if time.Since(d.begun) > refuseIn {
		return segment{}, false
	}
	bare = d.next(patience)
	require.Less(d.c.t, between(d.c.t, d.syn, bare), atOnce)
	_, _, has := bare.offer()
	require.False(d.c.t, has, "bare")
	require.Equal(d.c.t, d.syn.seq, bare.seq)
	return bare, true
}

// refused is a connection whose offered SYN is refused, and the bare one after it. Others
// before it, refused too late, do not come up: nothing is learned from them.
func (c *client) refused(to netip.AddrPort, r refusal) (*dialled, segment) {
	c.t.Helper()
	for range lateTries {
		d := c.dial(to.String())
		if bare, ok := d.refuse(r); ok {
			return d, bare
		}
	}
	require.Fail(c.t, "no SYN is refused in time")
	return nil, segment{}
}

// known is what is remembered of a peer.
func (c *client) known(addr netip.Addr, port uint16) (p Peer, ok bool) {
	c.t.Helper()
	all, err := c.d.Peers()
	require.NoError(c.t, err)
	for _, p := range all {
		if p.Addr == addr && p.Port == port {
			return p, true
		}
	}
	return Peer{}, false
}

// eachRefusal runs a test for every refusal, in both families, with nothing known.
func eachRefusal(t *testing.T, c *client, test func(t *testing.T, r refusal, to netip.AddrPort)) {
	for _, host := range []string{ghost4, ghost6} {
		for _, r := range refusals {
			t.Run(fmt.Sprintf("%s %s", host, r.name), func(t *testing.T) {
				_, err := c.d.FlushPeers()
				require.NoError(t, err)
				test(t, r, netip.AddrPortFrom(netip.MustParseAddr(host), 6379))
			})
		}
	}
}

// strictClient has a firewall that drops what conntrack finds invalid.
func strictClient(t *testing.T) *client {
	c := newClient(t, config(accelerate(6379, 6380)))
	c.h1.nft(`table inet f { chain i { type filter hook input priority 0; policy drop; ` +
		`icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ct state invalid drop; ct state established,related accept; iif lo accept; }; }`)
	return c
}

// A box refuses SYNs with the option and lets bare ones pass: the application gets
// the answer to the bare one, a round trip later, and the box is remembered.
func TestBoxRejectsOption(t *testing.T) {
	c := strictClient(t)
	eachRefusal(t, c, func(t *testing.T, r refusal, to netip.AddrPort) {
		before := nativeCount(t, c.d, SideClient, ReasonOptionRejected)
		d, bare := c.refused(to, r)
		d.answer(bare.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		require.NoError(t, d.ends())
		require.Equal(t, StateNone, c.state(d.tuple))
		require.Equal(t, before+1, nativeCount(t, c.d, SideClient, ReasonOptionRejected))
		c.rec.wait(t, patience, func(e Event) bool { return e.Tuple == d.tuple && e.Reason == ReasonOptionRejected })
		p, ok := c.known(to.Addr(), 0)
		require.True(t, ok)
		require.Equal(t, ReasonOptionRejected, p.Reason)
		require.Positive(t, p.TTL)
		require.LessOrEqual(t, p.TTL, 5*time.Second)
		_, ok = c.known(to.Addr(), to.Port())
		require.False(t, ok, "the port refuses nothing")
		require.False(t, c.dial(netip.AddrPortFrom(to.Addr(), 6380).String()).offers(), "left alone")
	})
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOptionBlackholed))
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonPeerRefused))
}

// A closed port refuses both SYNs: the application gets that error, the next
// connection costs nothing, and the first that succeeds ends it.
func TestClosedPort(t *testing.T) {
	c := strictClient(t)
	eachRefusal(t, c, func(t *testing.T, r refusal, to netip.AddrPort) {
		d, bare := c.refused(to, r)
		d.answer(r.packet(t, bare))
		require.Equal(t, r.error(to.Addr()), d.ends())
		require.Equal(t, StateNone, c.state(d.tuple))
		p, ok := c.known(to.Addr(), to.Port())
		require.True(t, ok)
		require.Equal(t, ReasonPeerRefused, p.Reason)
		require.LessOrEqual(t, p.TTL, 2*time.Second)
		_, ok = c.known(to.Addr(), 0)
		require.False(t, ok, "the path is not at fault")
		require.NoError(t, c.d.Remember(to.Addr(), to.Port(), ReasonPeerRefused, time.Hour)) // however long the rest of this takes
		require.True(t, c.dial(netip.AddrPortFrom(to.Addr(), 6380).String()).offers(), "other ports are not concerned")

		next := c.dial(to.String())
		require.False(t, next.offers())
		next.answer(r.packet(t, next.syn))
		require.Equal(t, r.error(to.Addr()), next.ends(), "at the first answer")

		open := c.dial(to.String())
		require.False(t, open.offers())
		open.answer(open.syn.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		require.NoError(t, open.ends())
		_, ok = c.known(to.Addr(), to.Port())
		require.False(t, ok, "the first connection that succeeds ends it")
		require.True(t, c.dial(to.String()).offers())
	})
	require.Zero(t, nativeCount(t, c.d, SideClient, ReasonOptionRejected))
}

// A rest is short at first and longer each time in a row.
func TestClosedPortAgain(t *testing.T) {
	c := newClient(t, config(accelerate(6379)))
	to := addrPort(ghost4 + ":6379")
	for _, rest := range []time.Duration{2 * time.Second, 4 * time.Second} {
		d, bare := c.refused(to, refusals[0])
		began := time.Now()
		d.answer(refusals[0].packet(t, bare))
		require.Error(t, d.ends())
		p, ok := c.known(to.Addr(), to.Port())
		require.True(t, ok)
		require.LessOrEqual(t, p.TTL, rest)
		require.GreaterOrEqual(t, p.TTL, rest-time.Since(began))
		time.Sleep(p.TTL + 10*time.Millisecond)
	}
}

// The gateway is not needed to ask again.
func TestRefusedWhileStale(t *testing.T) {
	for i, late := 0, 0; i < 2; {
		c := newClient(t, config(accelerate(6379)))
		d := c.dial(ghost4 + ":6379")
		require.NoError(t, c.d.StopHeartbeat())
		bare, ok := d.refuse(refusals[i])
		if !ok {
			late++
			require.Less(t, late, lateTries, "no SYN is refused in time")
			continue
		}
		d.answer(bare.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		require.NoError(t, d.ends())
		i++
	}
}

// Devices without a link header carry IP packets as they are.
func TestRefusedLayer3(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	fd := h.layer3(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	cfg := config(accelerate(6379))
	cfg.Devices = []string{"l3"}
	d := h.open(cfg)
	late := 0
	for i := 0; i < len(refusals); {
		r, begun := refusals[i], time.Now()
		ch := h.connectAsync("10.78.0.2:6379")
		syn := readTUN(t, fd, isSYN(6379))
		_, _, has := syn.offer()
		require.True(t, has, r.name)
		write := func(pkt []byte) {
			_, err := unix.Write(fd, append(make([]byte, vnetHeaderLen), pkt...))
			require.NoError(t, err)
		}
		if r.icmp[0] == 0 {
			write(syn.reply(flagRST|flagACK, 0, nil).bytes(t))
		} else {
			write(icmpOf(r.icmp, addrPort("10.78.0.3:1").Addr(), syn.src.Addr(), syn.bytes(t)))
		}
		inTime := time.Since(begun) <= refuseIn
		bare := readTUN(t, fd, func(s segment) bool { return isSYN(6379)(s) && s.src == syn.src })
		_, _, has = bare.offer()
		require.False(t, has)
		require.Equal(t, syn.seq, bare.seq)
		write(bare.reply(flagSYN|flagACK, 7000, pad(timestamps())).bytes(t))
		a := <-ch
		if inTime {
			require.Less(t, between(t, syn, bare), atOnce)
			require.NoError(t, a.err, r.name)
			i++
		} else {
			late++
			require.Less(t, late, lateTries, "no SYN is refused in time")
		}
		if a.err == nil {
			_ = a.c.Close()
		}
		_, err := d.FlushPeers()
		require.NoError(t, err)
	}
	rejected := nativeCount(t, d, SideClient, ReasonOptionRejected)
	require.GreaterOrEqual(t, rejected, uint64(len(refusals)))
	require.LessOrEqual(t, rejected, uint64(len(refusals)+late))
}

// What is no refusal of this SYN changes nothing: errors about other packets, and
// those that end no connection request.
func TestNoRefusal(t *testing.T) {
	c := newClient(t, config(accelerate(6379)))
	hosts := []string{ghost4 + ":6379", "[" + ghost6 + "]:6379"}
	for i, late := 0, 0; i < len(hosts); {
		d := c.dial(hosts[i])
		router := d.tuple.Remote.Addr()
		other := d.syn
		other.seq++
		big, prohibited := [2]uint8{3, 4}, [2]uint8{3, 13}
		if router.Is6() {
			big, prohibited = [2]uint8{2, 0}, [2]uint8{1, 1}
		}
		wrong := d.syn.reply(flagRST|flagACK, 0, nil)
		wrong.ack++
		bareReset := d.syn.reply(flagRST, 0, nil) // acknowledges nothing
		d.answer(
			icmpOf(big, router, d.tuple.Local.Addr(), d.syn.bytes(t)),
			icmpOf(prohibited, router, d.tuple.Local.Addr(), other.bytes(t)),
			bareReset.bytes(t),
		)
		state := c.state(d.tuple)
		if !d.silent() {
			late++
			require.Less(t, late, lateTries, "the kernel repeats every SYN before the test has looked")
			continue
		}
		require.Equal(t, StateOffered, state)
		i++
	}
	require.Zero(t, stat(t, c.d, "offer_refused"))
}

// icmpOf builds an ICMP error about a packet, with the checksum that a kernel wants.
func icmpOf(kind [2]uint8, src, dst netip.Addr, quoted []byte) []byte {
	pkt := icmpError(src, dst, quoted)
	at, sum := packet.IPv4MinLen, uint16(0)
	if src.Is6() {
		at = packet.IPv6Len
		sum = packet.PseudoSum(pkt[:at], packet.ProtoICMPv6, len(pkt)-at)
	}
	pkt[at], pkt[at+1] = kind[0], kind[1]
	binary.BigEndian.PutUint16(pkt[at+2:], ^packet.Sum(pkt[at:], sum))
	return pkt
}
