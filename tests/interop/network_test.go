package interop

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs"
)

// lose makes the host's network lose a part of the RoCE packets in both directions: one in that many, so 1 means all.
func (l *lab) lose(t *testing.T, one int) {
	t.Helper()
	testnet.Require(t, "nft")
	drop := fmt.Sprintf("udp dport %d numgen random mod %d == 0 drop", verbs.RoCEUDPPort, one)
	require.NoError(t, l.host.NFT(fmt.Sprintf(`table inet loss {
		chain in { type filter hook input priority 0; %s; }
		chain out { type filter hook output priority 0; %s; }
	}
	`, drop, drop)))
	t.Cleanup(func() { require.NoError(t, l.host.FlushNFT()) })
}

// TestLoss loses packets: each side must recognize what the other retransmits, whether requests, answers or READ
// responses.
func TestLoss(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		path := l.paths()[0]
		l.lose(t, 100)
		t.Run("messages", func(t *testing.T) {
			n := scaled(1000)
			server := l.start(t, "ibv_rc_pingpong", "-d", guest.Device, "-g", strconv.Itoa(path.gid), "-n", strconv.Itoa(n))
			p := &pingpong{e: l.open(t, path.our), kind: verbs.QPTRC, size: 4096, n: n}
			p.prepare()
			p.client(l.dial(t, path.peer, pingpongPort))
			p.play(true)
			ended(t, server)
		})
		for _, c := range perftestCases {
			n := max(scaled(c.n), 30)
			args := []string{c.program, "-d", guest.Device, "-x", strconv.Itoa(path.gid), "-n", strconv.Itoa(n), "-F", "-m", "1024"}
			t.Run(c.program+" program serves", func(t *testing.T) {
				server := l.start(t, args...)
				p := &perftest{e: l.open(t, path.our), conn: l.dial(t, path.peer, perftestPort)}
				p.open(p.e.memory(perftestMemory))
				c.connect(p, c.size, n)
				p.part()
				ended(t, server)
			})
			t.Run(c.program+" program connects", func(t *testing.T) {
				ln := l.listen(t, path.our, perftestPort)
				client := l.start(t, append(args, path.our.String())...)
				conn, err := ln.Accept()
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				p := &perftest{e: l.open(t, path.our), conn: conn, server: true}
				p.open(p.e.memory(perftestMemory))
				c.serve(p, c.size, n)
				p.part()
				ended(t, client)
			})
		}
	})
}

// TestNetworkDies drops all packets in the middle; both sides must find out. The kernel, if told 7 retries, would
// retry for ever (rxe_comp.c); ucmatose can be told another number.
func TestNetworkDies(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		path := l.paths()[0]
		e := l.open(t, path.our)
		m := e.manager()
		// It sends all its messages as soon as it is connected, and waits until they complete, successfully or not.
		server := l.start(t, "ucmatose", "-b", path.peer.String(), "-C", "1000", "-S", "60000")
		params := e.params(nil)
		params.RetryCount = 3
		var qp verbs.QP
		conn := e.dialCM(m, func() verbs.QP {
			qp = e.qp(verbs.QPTRC)
			return qp
		}, netip.AddrPortFrom(path.peer, cmatosePort), params)
		require.NoError(t, server.WaitOutput(patience(t, time.Minute), "completing sends"))
		l.lose(t, 1)

		start := time.Now()
		e.do(func() error {
			return qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled | verbs.SendInline, Inline: []byte("x")})
		})
		require.Equal(t, verbs.WCRetryExcErr, e.next().Status)
		require.Less(t, time.Since(start), time.Minute)
		require.NoError(t, server.WaitOutput(patience(t, 60*time.Second), "receiving data transfers"))
		require.NoError(t, conn.Err(), "what happens to a queue pair is not the connection's business")
	})
}
