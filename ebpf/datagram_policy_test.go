package ebpf

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// sendAs sends a datagram from a new socket that a user made.
func (h *host) sendAs(q Query) (t Tuple) {
	h.t.Helper()
	t.Remote = netip.AddrPortFrom(q.Peer, q.Port)
	fd := -1
	h.do(func() {
		// This thread only; it dies after do. The effective user makes the socket.
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(q.UID), ^uintptr(0))
		if errno != 0 {
			h.t.Errorf("setresuid: %v", errno)
			return
		}
		var err error
		fd, err = unix.Socket(sockaddr.Family(q.Peer), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
		if err == nil {
			err = unix.Connect(fd, sockaddr.Of(t.Remote))
		}
		if err == nil {
			_, err = unix.Write(fd, []byte("x"))
		}
		if err == nil {
			t.Local, err = sockaddr.Local(fd)
		}
		if err != nil {
			h.t.Errorf("datagram to %v: %v", q.Peer, err)
		}
	})
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	return t
}

// The programs decide about datagrams as Decide does: by port, peer, user and
// cgroup, with the never-list, and by rules about UDP only.
func TestDatagramPolicyInKernel(t *testing.T) {
	h1, h2 := newPair(t)
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	base := makeCgroups(t, mount)
	defer enterCgroup(t, mount, "/")
	h1.do(func() { defaultRoutes(t, h2.mac()) })
	cfg := config(nil)
	cfg.NeverPorts, cfg.CgroupPath = testNever, mount
	d := h1.open(cfg)
	rng := rand.New(rand.NewPCG(3, 4))
	pick := func(n int) int { return rng.IntN(n) }
	decided, accelerated := map[int]Decided{}, 0
	for range 24 {
		rules := randomRules(pick, base)
		for i := range rules {
			rules[i].Proto = Proto(min(pick(4), 1))
		}
		require.NoError(t, d.SetPolicy(rules))
		looked := slices.ContainsFunc(rules, func(r Rule) bool { return r.Proto == ProtoUDP && r.Action == ActionAccelerate })
		place := base + []string{"/a", "/a/b", "/c"}[pick(3)]
		enterCgroup(t, mount, place)
		for range 15 {
			q := Query{
				Proto: ProtoUDP, Peer: testPeers[pick(len(testPeers))], Port: testPorts[pick(len(testPorts))],
				UID: testUIDs[pick(len(testUIDs))], Cgroup: place,
			}
			tuple := h1.sendAs(q)
			q.Local, q.Remote = tuple.Local, tuple.Remote
			want := naive(rules, testNever, q)
			require.Equal(t, want, d.Decide(q))
			e, ok := entry(t, d, tuple)
			require.Equal(t, looked, ok, "%+v", rules)
			if !looked {
				continue
			}
			n := decided[want.Rule]
			n.Rule = want.Rule
			require.Equal(t, want.Rule, ruleIndex(e.Rule), "%+v %+v", rules, q)
			if want.Action == ActionPass {
				require.Equal(t, want.Reason, e.Reason, "%+v %+v", rules, q)
				n.Pass++
			} else {
				require.Equal(t, ReasonPeerUnresolved, e.Reason, "%+v %+v", rules, q)
				n.Accelerate++
				accelerated++
			}
			decided[want.Rule] = n
		}
	}
	require.Greater(t, accelerated, 10)
	c, err := d.Counters()
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Values(decided)), c.Decided)
}

// A rule about TCP leaves datagrams alone and the other way round.
func TestRulesByProtocol(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	d := h1.open(config([]Rule{{Ports: []uint16{80}, Action: ActionAccelerate}, {Proto: ProtoUDP, Ports: []uint16{90}, Action: ActionAccelerate}}))
	for _, v := range []struct {
		port   uint16
		tcp    bool
		reason uint8
	}{{80, true, ReasonPolicy}, {90, false, ReasonPeerUnresolved}} {
		to := netip.AddrPortFrom(netip.MustParseAddr(ghost4), v.port)
		local, err := h1.begin(unix.AF_INET, to)
		require.NoError(t, err)
		_, err = d.Flow(Tuple{Local: local, Remote: to})
		require.Equal(t, v.tcp, err == nil, fmt.Sprint(v))
		e, ok := entry(t, d, h1.sendAs(Query{Peer: to.Addr(), Port: v.port}))
		require.True(t, ok)
		require.Equal(t, v.reason, e.Reason, fmt.Sprint(v))
	}
}

// A tuple belongs to the socket that sends on it now: the next owner of a port
// is not taken for the last one, and a decision that is only renewed is not
// counted.
func TestDatagramDecisionAges(t *testing.T) {
	t.Parallel()
	c := newCarriers(t, []Rule{{Proto: ProtoUDP, UIDs: []uint32{1000}, Action: ActionAccelerate}})
	capable(t, c.d1, "10.77.0.2")
	c.h2.udpEcho("10.77.0.2:9000")
	app := c.h1.udp("", "10.77.0.2:9000")
	tuple := udpTuple(app)
	ping(t, app, "root's")
	time.Sleep(1100 * time.Millisecond)
	ping(t, app, "root's, decided again")
	require.Zero(t, c.f.carried.Load())
	counters, err := c.d1.Counters()
	require.NoError(t, err)
	require.Equal(t, []Decided{{Rule: NoRule, Pass: 1}}, counters.Decided)
	require.Equal(t, map[uint8]uint64{ReasonPolicy: 1}, counters.Datagrams[SideClient])
	require.Empty(t, counters.Native[SideClient])
	setOwner(t, app, 1000) // as if another program had taken the port
	time.Sleep(1100 * time.Millisecond)
	ping(t, app, "another user's")
	c.carried(2)
	e, ok := entry(t, c.d1, tuple)
	require.True(t, ok)
	require.Zero(t, e.Rule)
	require.Zero(t, e.Reason)
	require.EqualValues(t, 3, e.Packets)
}

// setOwner gives a socket to another user.
func setOwner(t *testing.T, c syscall.Conn, uid int) {
	t.Helper()
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) { require.NoError(t, unix.Fchown(int(fd), uid, -1)) }))
}
