package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestLegsTakeNothing checks that, while connections are carried and right after them, every address and port of both
// hosts is free for their programs, with and without SO_REUSEADDR, and that the server's own host can use the whole
// of a port range that clients elsewhere have nearly used up. The native control does the same without gateways.
func TestLegsTakeNothing(t *testing.T) {
	t.Parallel()
	const narrow = 10
	for _, gateways := range []bool{false, true} {
		t.Run(fmt.Sprintf("gateways %v", gateways), func(t *testing.T) {
			w := newServed(t)
			for _, h := range []*testnet.Host{w.h1, w.h2} {
				require.NoError(t, h.SetSysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("40000 %d", 40000+narrow-1)))
			}
			if gateways {
				w.upBoth(settings{})
			}
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				to := addr(w.h2, echoPort)
				var held []*testnet.Proc
				var events []apps.Event
				for range narrow - 1 {
					if gateways {
						w.flush() // so that only those that find a gateway late are native
					}
					p, e := w.hold(t, w.h1, to)
					held = append(held, p)
					events = append(events, e)
				}
				free := func(when string) {
					for _, e := range events {
						port := netip.MustParseAddrPort(e.Local).Port()
						requireFree(t, w.h2, hostOf(addr(w.h2, 1)), port, when+": the client's port at the server")
					}
					requireFree(t, w.h1, hostOf(addr(w.h1, 1)), echoPort, when+": the server's port at the client")
					requireRange(t, w.h2, hostOf(addr(w.h2, 1)), narrow, when)
				}
				free("while connections last")
				for _, p := range held {
					leaves(t, p)
				}
				free("when they have ended")
				carried := 0
				for _, e := range events {
					if gateways && !w.foundLate(e) {
						w.carriedBy(e, w.via)
						carried++
					}
				}
				require.True(t, !gateways || carried >= narrow/2, "%d are carried", carried)
			})
		})
	}
}

// requireFree binds and listens on a port of an address, without SO_REUSEADDR.
func requireFree(t *testing.T, h *testnet.Host, a netip.Addr, port uint16, what string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		fd, err := boundSocket(netip.AddrPortFrom(a, port), false)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Listen(fd, 1)
	}), what)
}

// requireRange takes as many ports as the narrow range has.
func requireRange(t *testing.T, h *testnet.Host, a netip.Addr, n int, what string) {
	t.Helper()
	require.NoError(t, h.Do(func() error {
		for range n {
			fd, err := boundSocket(netip.AddrPortFrom(a, 0), false)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
		}
		return nil
	}), what)
}

// boundSocket returns a TCP socket bound to an address.
func boundSocket(a netip.AddrPort, reuse bool) (int, error) {
	fd, err := unix.Socket(sockaddr.Family(a.Addr()), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if reuse {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err := unix.Bind(fd, sockaddr.Of(a)); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// TestLegsOfMarkedSockets checks that a connection is carried whatever mark its program gives the socket, and that
// its packets have that mark at the firewall, as natively.
func TestLegsOfMarkedSockets(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := netip.MustParseAddrPort(addr(w.h2, echoPort))
		for _, mark := range []int{1, 0x10000000, 0x20000000, 0x30000000, 0x7fffffff} {
			var local netip.AddrPort
			marked := func() error {
				fd, err := boundSocket(netip.AddrPortFrom(hostOf(addr(w.h1, 1)), 0), false)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(fd) }()
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
					return err
				}
				if err := unix.Connect(fd, sockaddr.Of(to)); err != nil {
					return err
				}
				if local, err = sockaddr.Local(fd); err != nil {
					return err
				}
				return echoed(fd)
			}
			w.inTime(func() bool {
				return w.noneLate(func() { require.NoError(t, w.h1.Do(marked), "mark %#x", mark) })
			})
			w.gateways[w.h1].awaitConn(local.String(), func(c report.ConnInfo) bool {
				return c.Local == local && c.Carrier == w.via
			}, "--closed")
		}
	})
}

// echoed sends a byte to an echo server and reads it back.
func echoed(fd int) error {
	tv := unix.NsecToTimeval((30 * time.Second).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("?")); err != nil {
		return err
	}
	b := make([]byte, 1)
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR { // SO_RCVTIMEO takes SA_RESTART from Go's signals
		n, err = unix.Read(fd, b)
	}
	if err != nil || n != 1 || b[0] != '?' {
		return fmt.Errorf("read %d bytes, %q: %w", n, b, err)
	}
	return nil
}

// TestKeeperDies checks that a spare takes the place of a dead keeper, the process that makes legs, as often as one
// dies. What is carried must go on, and new connections must be carried. If both die at once, new connections must be
// native, and say why, until a restart.
func TestKeeperDies(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	w.upBoth(settings{})
	for _, h := range []*testnet.Host{w.h2, w.h1} {
		to := w.h2.AddrPort4(echoPort).String()
		p, held := w.holdInTime(t, to)
		g := w.gateways[h]
		beside, err := w.h1.StartApp("churn", "-count", "2000", "-parallel", "10", "-size", "1000", "-to", w.h2.AddrPort4(transferPort).String())
		require.NoError(t, err)
		for range 4 {
			keeper, spare := g.keeper(), g.spare()
			require.NoError(t, syscall.Kill(keeper, syscall.SIGKILL))
			require.Eventually(t, func() bool { return saysOnItsLine(spare, process.LegsVerb) }, 10*time.Second, 10*time.Millisecond)
			require.Equal(t, spare, g.keeper())
			require.NotEqual(t, spare, g.spare(), "another one")
			require.Eventually(t, func() bool { return len(g.status().BlockedLegs) == 0 }, 10*time.Second, 10*time.Millisecond)
			require.Contains(t, strings.Join(g.status().Notes, "\n"), "smcgw-legs has ended")
			w.carried(t, w.h1, to)
			require.NoError(t, p.Send("ping"))
		}
		result, err := beside.WaitEvents(patience(t), 1, func(e apps.Event) bool { return e.Event == "result" })
		require.NoError(t, err)
		require.Equal(t, 2000, result[0].OK, "%v", result[0].Errnos)
		before, late := g.status().FlowsTotal[w.via], w.late()
		e := w.mustApp(w.h1, "churn", "-count", "100", "-parallel", "10", "-size", "1000", "-to", w.h2.AddrPort4(transferPort).String())
		require.Equal(t, 100, e.OK) // more than the sockets that were made ahead
		require.LessOrEqual(t, 100-(g.status().FlowsTotal[w.via]-before), w.late()-late, "all carried, but those that found a gateway late")
		// A dead spare is replaced, although nothing has asked it for anything.
		spare := g.spare()
		require.NoError(t, syscall.Kill(spare, syscall.SIGKILL))
		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(spare, 0), syscall.ESRCH) }, 10*time.Second, 10*time.Millisecond, "the guardian has waited for it")
		require.NotEqual(t, spare, g.spare())

		both := []int{g.spare(), g.keeper()}
		for _, pid := range both {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		require.Eventually(t, func() bool {
			return len(g.status().BlockedLegs) == 1 && g.status().BlockedLegs[0].At == "keeper"
		}, 30*time.Second, 50*time.Millisecond)
		require.Contains(t, g.status().Degraded, "app_leg_blocked")
		w.mustApp(w.h1, "ping", "-count", "3", "-to", to)
		require.NoError(t, p.Send("ping"))
		leaves(t, p)
		w.carriedBy(held, w.via)
		w.restart(h, settings{})
		w.flush()
		w.carried(t, w.h1, to)
	}
}
