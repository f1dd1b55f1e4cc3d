package e2e

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestSemanticsOfStuckResets resets connections on which nothing moves, because the other end does not read, or
// because the application has nothing to send after a half-close. The other end, which neither reads nor writes, must
// get the reset at once, as natively, whatever carries.
func TestSemanticsOfStuckResets(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"native", "carried", "demoted", "raw"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			server := w.h2
			if way == "native" {
				server = w.h3
			}
			w.upBoth(ownSettings())
			if way == "raw" { // the client is native; the server's gateway relays
				require.NoError(t, w.h2.SetBox(testnet.Box{StripSYNACK: true}))
			}
			for _, c := range []struct{ byServer, halfClosed bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
				w.flush()
				p := w.pairInTime(t, server, server.AddrPort4(ownPort))
				defer p.close()
				who, other := p.c, p.s
				if c.byServer {
					who, other = p.s, p.c
				}
				_, err := p.c.Write([]byte{1})
				require.NoError(t, err)
				_, err = p.s.Read(make([]byte, 1))
				require.NoError(t, err)
				if way == "demoted" {
					w.carries(t, "carried")
					w.gateways[w.h1].says("demote", "--all")
				}
				if c.halfClosed {
					require.NoError(t, who.CloseWrite())
					_, err = other.Read(make([]byte, 1)) // its end
					require.ErrorIs(t, err, io.EOF)
				} else {
					_, _ = fillUp(who)
				}
				w.carries(t, way)
				require.False(t, closed(other))
				require.NoError(t, who.SetLinger(0))
				require.NoError(t, who.Close())
				require.Eventually(t, func() bool { return closed(other) }, slack, time.Millisecond, "%+v", c)
				for h, g := range w.gateways {
					require.Eventually(t, func() bool { return len(g.conns()) == 0 }, 30*time.Second, 10*time.Millisecond, "%s: %s", h.Name, g.dump())
				}
			}
		})
	}
}

// lastWords are scenarios in which an application ends with bytes still on their way.
var lastWords = slices.Concat(
	answersUnread,
	mirrored("ONE ends both directions of what the OTHER streams", report.EndAborted, func(p *pair, one, other side) {
		both(func() { p.gets(other) }, func() {
			both(func() { _ = send(other.c, 1<<30) }, func() {
				p.getsN(one, 3_000_000)
				p.note("no more %s", errno(one.c.CloseRead()))
				p.fins(one)
			})
		})
	}),
	mirrored("ONE closes, and a OTHER that has ended reads late", report.EndClosed, func(p *pair, one, other side) {
		p.fins(other)
		p.gets(one)
		p.sends(one, 400_000) // more than the other has room for
		p.closes(one)
		time.Sleep(3 * idle) // longer than a gateway waits when both have ended, and keeps its entry then
		p.gets(other)
	}),
)

// TestSemanticsOfLastWords checks that the last bytes of an application, and its end, arrive as natively on a wire
// leg, too: ahead of a reset, and however late they are read.
func TestSemanticsOfLastWords(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"demoted", "raw"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			w.upBoth(ownSettings())
			if way == "raw" { // the client is native; the server's gateway relays
				require.NoError(t, w.h2.SetBox(testnet.Box{StripSYNACK: true}))
			}
			var pairs [2][]*pair // native, and with gateways
			for i := range lastWords {
				w.flush()
				for j, h := range []*testnet.Host{w.h3, w.h2} {
					p := w.pairInTime(t, h, h.AddrPort4(uint16(ownPort+i)))
					defer p.close()
					pairs[j] = append(pairs[j], p)
				}
			}
			relayed := func() bool { return w.gateways[w.h2].status().Flows[report.CarrierRelay] == len(lastWords) }
			if way == "demoted" {
				require.Eventually(t, func() bool { return w.gateways[w.h1].status().Flows[w.via] == len(lastWords) }, 30*time.Second, 10*time.Millisecond)
				w.gateways[w.h1].says("demote", "--all")
			}
			require.Eventually(t, relayed, 30*time.Second, 10*time.Millisecond, "%s", w.gateways[w.h2].dump())
			var all sync.WaitGroup
			for i, sc := range lastWords {
				for j := range pairs {
					all.Go(func() { sc.play(pairs[j][i]) })
				}
			}
			all.Wait()
			for i, sc := range lastWords {
				for j := range pairs {
					slices.Sort(pairs[j][i].saw)
				}
				require.Equal(t, pairs[0][i].saw, pairs[1][i].saw, sc.name)
			}
		})
	}
}

// carries requires the only connection to be carried in this way.
func (w *world) carries(t *testing.T, way string) {
	t.Helper()
	by := map[string]report.Carrier{"native": report.CarrierNone, "carried": w.via, "demoted": report.CarrierRelay, "raw": report.CarrierRelay}[way]
	require.Eventually(t, func() bool {
		conns := w.gateways[w.h2].conns()
		if way == "native" {
			return len(conns) == 0
		}
		return len(conns) == 1 && conns[0].Carrier == by
	}, 30*time.Second, 10*time.Millisecond, "%s: %s", way, w.gateways[w.h2].dump())
}

// closed tells whether the kernel has closed a connection, which means a reset unless this end has closed it.
func closed(c *net.TCPConn) bool { return tcpInfo(c).State == tcpClose }

// awaitClosed waits until the kernel has closed a connection.
func awaitClosed(c *net.TCPConn) {
	for end := time.Now().Add(socketPatience); !closed(c) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// tcpClose is TCP_CLOSE from the kernel's tcp_states.h.
const tcpClose = 7
