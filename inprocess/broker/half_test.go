package broker

import (
	"errors"
	"net"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/lab/testnet"
)

// notebook is a Beyond that notes what it is told.
type notebook struct {
	mu     sync.Mutex
	halves []*Half
	told   []string
}

func (n *notebook) note(what string, h *Half) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, what)
	if h != nil {
		n.halves = append(n.halves, h)
	}
}

func (n *notebook) Waits(h *Half) { n.note("waits", h) }
func (n *notebook) Over(*Half)    { n.note("over", nil) }
func (n *notebook) Alone(*Half)   { n.note("alone", nil) }
func (n *notebook) Socket(_ *Half, fd int) {
	n.note("socket", nil)
	_ = unix.Close(fd)
}

func (n *notebook) Ended(_ *Half, closed bool) {
	if closed {
		n.note("closed", nil)
	} else {
		n.note("left", nil)
	}
}

// says waits for all that is told, in order.
func (n *notebook) says(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.told) >= len(want)
	}, "it is told")
	n.mu.Lock()
	defer n.mu.Unlock()
	require.Equal(t, want, n.told)
}

func (n *notebook) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.told)
}

// last is the half that was told of last.
func (n *notebook) last(t *testing.T) *Half {
	t.Helper()
	eventually(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.halves) > 0
	}, "an end waits")
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.halves[len(n.halves)-1]
}

// byPorts names connections of one host.
type byPorts struct{}

func (byPorts) Of(fd int, _ bool) (mine, peer uint32, client bool, err error) {
	local, _ := unix.Getsockname(fd)
	remote, _ := unix.Getpeername(fd)
	mine, peer = uint32(addrPort(local).Port()), uint32(addrPort(remote).Port())
	return mine, peer, mine >= peer, nil // it does not matter which
}

// errNoName is that of a namer which cannot tell.
var errNoName = errors.New("no name")

func serveBeyond(t *testing.T, l Limits) (*Broker, string, *notebook) {
	b, at := serve(t, Config{Namer: byPorts{}, Limits: l})
	n := &notebook{}
	b.SetBeyond(n)
	return b, at, n
}

// portionOf is memory for an end, with rings of 2^order bytes.
func portionOf(t *testing.T, h *Half, order uint32) shared.Portion {
	t.Helper()
	p := shared.NoPortion
	var err error
	p.Own, err = shared.NewMemory("own", inprocess.EndSize(order), shared.EndHead(h.ID, 0, order), 0)
	require.NoError(t, err)
	p.Mirror, err = shared.NewMemory("mirror", inprocess.EndSize(order), shared.EndHead(h.ID, 1, order), 0)
	require.NoError(t, err)
	shared.Close(&p.Own.Read, &p.Mirror.Write)
	p.Bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	return p
}

func (l *library) gives(what inprocess.What, tag uint32, c *net.TCPConn) {
	raw, err := c.SyscallConn()
	require.NoError(l.t, err)
	require.NoError(l.t, raw.Control(func(fd uintptr) { l.send(inprocess.Record{What: what, Tag: tag}, int(fd)) }))
}

// TestHalf: an end whose other end is on another host is granted, gives its socket and counts, until nobody has its memory.
func TestHalf(t *testing.T) {
	for _, how := range []string{"closed", "left"} {
		t.Run(how, func(t *testing.T) {
			b, at, n := serveBeyond(t, Limits{})
			l := connect(t, at)
			client, server := connection(t, "tcp4")
			l.ask(0x20001, client)
			h := n.last(t)
			p := portionOf(t, h, inprocess.OrderMin)
			gateway, err := shared.Reopen(p.Mirror.Kept, unix.O_RDWR) // which has the mirror for as long as it carries
			require.NoError(t, err)
			require.True(t, h.Grant(p, inprocess.OrderMin, "rdma-soft"))
			require.False(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"), "again")
			g := l.granted(0x20001)
			require.Zero(t, g.A)
			require.Equal(t, h.ID, g.ID)
			e := b.Snapshot().Ends[0]
			require.Equal(t, "rdma-soft", e.Carrier)
			require.EqualValues(t, 2*inprocess.EndSize(inprocess.OrderMin), b.Counters().Memory)
			l.gives(inprocess.Socket, 0x20001, client)
			n.says(t, "waits", "socket")
			if how == "closed" {
				l.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: h.ID})
			} else {
				l.close()
			}
			n.says(t, "waits", "socket", how)
			require.EqualValues(t, 1, b.Counters().Promoted)
			g.let()
			n.says(t, "waits", "socket", how, "alone")
			time.Sleep(4 * firstLook) // it is looked at again
			require.EqualValues(t, 2*inprocess.EndSize(inprocess.OrderMin), b.Counters().Memory, "the gateway has memory of it")
			shared.Close(&gateway)
			eventually(t, func() bool { c := b.Counters(); return c.Memory == 0 && c.Conns == 0 }, "nobody has memory of it")
			_ = server
		})
	}
}

// TestHalfThatIsNone: the other end asks on this host, or the end goes, before anybody has granted it.
func TestHalfThatIsNone(t *testing.T) {
	for name, then := range map[string]func(l *library, at string, other *net.TCPConn){
		"both here": func(l *library, at string, other *net.TCPConn) {
			z := connect(l.t, at)
			z.ask(0x20001, other)
			z.granted(0x20001)
			l.granted(0x20001)
		},
		"closed": func(l *library, _ string, _ *net.TCPConn) {
			l.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001})
		},
		"left": func(l *library, _ string, _ *net.TCPConn) { l.close() },
	} {
		t.Run(name, func(t *testing.T) {
			_, at, n := serveBeyond(t, Limits{})
			l := connect(t, at)
			client, server := connection(t, "tcp4")
			l.ask(0x20001, client)
			h := n.last(t)
			then(l, at, server)
			n.says(t, "waits", "over")
			require.False(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"))
		})
	}
}

// TestWaitsBeyond: an end that has asked before anybody looked on other hosts is looked for, too.
func TestWaitsBeyond(t *testing.T) {
	b, at := serve(t, Config{Namer: byPorts{}})
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	l.ask(0x20001, client)
	eventually(t, func() bool { return len(b.Snapshot().Ends) == 1 }, "it waits")
	for range 2 { // another one takes over from who has ended
		n := &notebook{}
		b.SetBeyond(n)
		require.NotNil(t, n.last(t))
		b.SetBeyond(nil)
	}
}

// TestCause: what ends for want of a carrier is counted and shown by its cause, and nothing else is.
func TestCause(t *testing.T) {
	const first, other = 40, 64
	for name, of := range map[string]struct {
		granted bool
		says    inprocess.Why
		caused  bool
	}{
		"a carrier that is lost": {true, inprocess.WhyRecalled, true},
		"another reason":         {true, inprocess.WhyOption, false},
		"waits in vain":          {false, inprocess.WhyNoPeer, true},
	} {
		t.Run(name, func(t *testing.T) {
			limits := Limits{Wait: time.Hour}
			if !of.granted {
				limits.Wait = 2 * time.Second
			}
			b, at, n := serveBeyond(t, limits)
			l := connect(t, at)
			client, _ := connection(t, "tcp4")
			l.ask(0x20001, client)
			h := n.last(t)
			if of.granted {
				h.Blame(Cause{Number: other}) // a host that was asked before
				require.True(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"))
				l.granted(0x20001)
			}
			h.Blame(Cause{Number: first, Remote: true})
			h.Blame(Cause{Number: other})
			require.Equal(t, Cause{Number: first, Remote: true}, b.Snapshot().Ends[0].Cause)
			if of.granted {
				l.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: h.ID, Why: of.says})
				n.says(t, "waits", "closed")
			} else {
				l.denied(0x20001, of.says)
			}
			c := b.Counters()
			require.Equal(t, of.caused, c.Caused[first] == 1)
			require.Equal(t, of.caused, c.Returned[of.says]+c.Denied[of.says] == 0)
			require.Zero(t, c.Caused[other])
		})
	}
}

// TestHalfLimits: what is between hosts counts as what is on one.
func TestHalfLimits(t *testing.T) {
	for name, limits := range map[string]Limits{"memory": {Memory: 2*inprocess.EndSize(inprocess.OrderMin) - 1}, "conns": {ConnsPerUser: 1}} {
		t.Run(name, func(t *testing.T) {
			_, at, n := serveBeyond(t, limits)
			l := connect(t, at)
			why := inprocess.WhyMemory
			if name == "conns" {
				client, _ := connection(t, "tcp4")
				l.ask(0x20002, client)
				h := n.last(t)
				require.True(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"))
				l.granted(0x20002)
				why = inprocess.WhyLimit
			}
			had := n.count()
			client, _ := connection(t, "tcp4")
			l.ask(0x20001, client)
			eventually(t, func() bool { return n.count() > had }, "it waits")
			h := n.last(t)
			require.False(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"))
			l.denied(0x20001, why)
		})
	}
}

// TestSocketRefused ends the client that gives the socket of another connection, or a socket again.
func TestSocketRefused(t *testing.T) {
	for name, told := range map[string][]string{"another": {"waits", "left"}, "again": {"waits", "socket", "left"}} {
		t.Run(name, func(t *testing.T) {
			_, at, n := serveBeyond(t, Limits{})
			l := connect(t, at)
			client, _ := connection(t, "tcp4")
			given, _ := connection(t, "tcp4")
			l.ask(0x20001, client)
			h := n.last(t)
			require.True(t, h.Grant(portionOf(t, h, inprocess.OrderMin), inprocess.OrderMin, "rdma-soft"))
			l.granted(0x20001)
			if name == "again" {
				given = client
				l.gives(inprocess.Socket, 0x20001, given)
			}
			l.gives(inprocess.Socket, 0x20001, given)
			l.ends()
			n.says(t, told...)
		})
	}
}

// TestRoleWhileBytesAreUnderWay: the side of an end can be told while what it has sent is not acknowledged, and while more
// waits to be sent, whatever the library says.
func TestRoleWhileBytesAreUnderWay(t *testing.T) {
	testnet.Require(t, "root", "ip")
	testnet.InNamespace(t, func() {
		ip := func(args ...string) { require.NoError(t, exec.Command("ip", args...).Run()) }
		ip("link", "set", "lo", "up")
		client, server := connection(t, "tcp4")
		for role, c := range map[Role]*net.TCPConn{RoleClient: client, RoleServer: server} {
			_, err := c.Write([]byte("acknowledged"))
			require.NoError(t, err)
			require.Equal(t, role, roleOf(t, c, 1-role))
		}
		ip("link", "set", "lo", "down")
		for role, c := range map[Role]*net.TCPConn{RoleClient: client, RoleServer: server} {
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			for size := 1000; ; size = 1 << 20 {
				_, err := c.Write(make([]byte, size))
				require.Equal(t, role, roleOf(t, c, 1-role), size)
				if err != nil {
					break
				}
			}
		}
	})
}

func roleOf(t *testing.T, c *net.TCPConn, says Role) (r Role) {
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		r = roleAt(int(fd), info, says)
	}))
	return r
}
