package e2e

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestSemanticsOfUrgentBytes checks that a receiver that wants urgent bytes inline gets them inline, and what follows
// them at once, both ways, whatever carries.
func TestSemanticsOfUrgentBytes(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"native", "rdma-shm", "rdma-soft", "relay"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			server, via := w.h2, report.Carrier(way)
			if way == "native" {
				server, via = w.h3, report.CarrierShm
			}
			w.upBoth(ownSettings().with(via))
			p := w.pairInTime(t, server, server.AddrPort4(ownPort))
			defer p.close()
			if way == "relay" {
				w.carryAll(t, "rdma-soft", 1)
				w.gateways[w.h1].says("demote", "--all")
			}
			inLine(t, p.c)
			inLine(t, p.s)
			for round := range 1000 {
				from, to := p.c, p.s
				if round%2 == 1 {
					from, to = p.s, p.c
				}
				sendUrgent(t, from, round)
				got := make([]byte, 5)
				require.NoError(t, to.SetReadDeadline(time.Now().Add(slack)))
				_, err := io.ReadFull(to, got)
				require.NoError(t, err, "round %d: %q", round, got)
				require.Equal(t, "abcde", string(got), round)
			}
			w.carryAll(t, way, 1)
		})
	}
}

// sendUrgent writes two bytes, an urgent one and two more, in different ways.
func sendUrgent(t *testing.T, c *net.TCPConn, round int) {
	t.Helper()
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	write := func(b string, flags int) {
		ctlErr := rc.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte(b), flags, nil) })
		require.NoError(t, ctlErr)
		require.NoError(t, err)
	}
	if round%4 < 2 {
		write("ab", 0)
		write("c", unix.MSG_OOB)
	} else {
		write("abc", unix.MSG_OOB)
	}
	write("de", 0)
}

func inLine(t *testing.T, c *net.TCPConn) {
	t.Helper()
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1))
	}))
}
