package e2e

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// A scenario is what two applications do with one connection. They must see the same with a host that has a gateway
// as with one that has none.
type scenario struct {
	name string
	play func(p *pair)
	// end is how the gateways must report the end.
	end report.End
}

// idle is longer than any timer of a gateway that does not concern an idle connection: handshakes, proofs, lingering
// entries, late resets.
const idle = 7 * time.Second

// moment is long enough for anything to arrive, on a busy machine too, and if the network loses it once or twice.
const moment = 500 * time.Millisecond

// side is one end of a pair, for scenarios that are played from either end.
type side struct {
	name string
	c    *net.TCPConn
}

// mirrored returns a scenario in which the client acts, and the same with the server.
func mirrored(name string, end report.End, play func(p *pair, one, other side)) []scenario {
	return []scenario{
		{strings.NewReplacer("ONE", "client", "OTHER", "server").Replace(name), func(p *pair) {
			play(p, side{"client", p.c}, side{"server", p.s})
		}, end},
		{strings.NewReplacer("ONE", "server", "OTHER", "client").Replace(name), func(p *pair) {
			play(p, side{"server", p.s}, side{"client", p.c})
		}, end},
	}
}

func (p *pair) sends(from side, n int) { p.note("write %s", errno(send(from.c, n))) }
func (p *pair) fins(end side)          { p.note("fin %s", errno(end.c.CloseWrite())) }
func (p *pair) closes(end side)        { p.note("close %s", errno(end.c.Close())) }
func (p *pair) gets(end side)          { p.note(end.name+" got %s", receive(end.c)) }
func (p *pair) getsN(end side, n int)  { p.note(end.name+" got %s", readN(end.c, n)) }

func (p *pair) resets(end side) {
	p.note("linger %s", errno(end.c.SetLinger(0)))
	p.closes(end)
}

// says has one end write and end its direction while the other end reads.
func (p *pair) says(one, other side, n int) {
	both(func() {
		p.sends(one, n)
		p.fins(one)
	}, func() { p.gets(other) })
}

// answersUnread are scenarios whose answers fit into the first window, so the kernel has sent them before it resets.
var answersUnread = mirrored("ONE answers and closes with unread data", report.EndAborted, func(p *pair, one, other side) {
	p.sends(other, 20_000)
	awaitUnread(one.c, 20_000)
	p.sends(one, 12_000)
	p.closes(one)
	time.Sleep(moment)
	p.gets(other)
})

var scenarios = slices.Concat(
	mirrored("half-close of the ONE", report.EndClosed, func(p *pair, one, other side) {
		p.says(one, other, 300_000)
		time.Sleep(moment)
		p.says(other, one, 3_000_000)
	}),
	mirrored("ONE closes after its last write", report.EndClosed, func(p *pair, one, other side) {
		both(func() {
			p.sends(one, 6_000_000)
			p.closes(one)
		}, func() {
			time.Sleep(moment)
			p.gets(other)
			p.closes(other)
		})
	}),
	mirrored("ONE resets", report.EndAborted, func(p *pair, one, other side) {
		p.sends(one, 1000)
		p.getsN(other, 1000)
		p.resets(one)
		p.gets(other)
	}),
	mirrored("ONE closes with unread data", report.EndAborted, func(p *pair, one, other side) {
		p.sends(other, 1000)
		awaitUnread(one.c, 1000)
		p.closes(one)
		p.gets(other)
	}),
	answersUnread,
	mirrored("ONE resets a OTHER that has ended", report.EndAborted, func(p *pair, one, other side) {
		p.fins(other)
		p.gets(one)
		p.resets(one)
		p.gets(other)
	}),
	mirrored("ONE writes to a OTHER that is gone", report.EndAborted, func(p *pair, one, other side) {
		p.closes(other)
		p.gets(one)
		p.note("first write %s", errno(send(one.c, 10)))
		awaitClosed(one.c) // by the reset that answers it
		p.note("second write %s", errno(send(one.c, 10)))
	}),
	mirrored("idle and half closed by the ONE", report.EndClosed, func(p *pair, one, other side) {
		p.fins(one)
		p.gets(other)
		time.Sleep(idle)
		p.sends(other, 1000)
		p.fins(other)
		p.gets(one)
	}),
	[]scenario{
		{"both close at once", func(p *pair) {
			both(func() { p.note("fin %s", errno(p.c.CloseWrite())) }, func() { p.note("fin %s", errno(p.s.CloseWrite())) })
			both(func() { p.note("client got %s", receive(p.c)) }, func() {})
			p.note("server got %s", receive(p.s))
		}, report.EndClosed},
		{"server speaks first", func(p *pair) {
			p.note("write %s", errno(send(p.s, 100)))
			p.note("client got %s", readN(p.c, 100))
			p.note("write %s", errno(send(p.c, 100)))
			p.note("server got %s", readN(p.s, 100))
			both(func() { p.close() }, func() {})
		}, report.EndClosed},
		{"nobody says anything", func(p *pair) {
			both(func() { p.note("close %s", errno(p.s.Close())) }, func() { p.note("client got %s", receive(p.c)) })
		}, report.EndClosed},
		{"idle", func(p *pair) {
			time.Sleep(idle)
			both(func() { p.note("write %s", errno(send(p.c, 100_000))) }, func() { p.note("server got %s", readN(p.s, 100_000)) })
			both(func() { p.note("write %s", errno(send(p.s, 100_000))) }, func() { p.note("client got %s", readN(p.c, 100_000)) })
			both(func() { p.note("fin %s", errno(p.c.CloseWrite())) }, func() { p.note("server got %s", receive(p.s)) })
		}, report.EndClosed},
		{"the reader comes late", func(p *pair) {
			both(func() {
				p.note("write %s", errno(send(p.c, 4_000_000)))
				p.note("fin %s", errno(p.c.CloseWrite()))
				p.note("client got %s", receive(p.c))
			}, func() {
				time.Sleep(idle)
				p.note("server got %s", receive(p.s))
				p.note("fin %s", errno(p.s.CloseWrite()))
			})
		}, report.EndClosed},
		{"one byte at a time", func(p *pair) {
			dribble := func(from *net.TCPConn) {
				b := make([]byte, 3000)
				pattern(b, 0)
				for i := range b {
					if _, err := from.Write(b[i : i+1]); err != nil {
						p.note("write %d: %s", i, errno(err))
						return
					}
				}
				p.note("fin %s", errno(from.CloseWrite()))
			}
			both(func() {
				both(func() { dribble(p.c) }, func() { p.note("server got %s", receive(p.s)) })
			}, func() {
				both(func() { dribble(p.s) }, func() { p.note("client got %s", receive(p.c)) })
			})
		}, report.EndClosed},
	},
)

// TestSemanticsOfOneConnection plays every scenario between gateways and with the plain host, on both families, all
// at once, and compares what the applications see.
func TestSemanticsOfOneConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.upBoth(ownSettings())
	played := w.playAll(scenarios)
	// A connection that found a gateway late, and those after it to the same address, say nothing of the gateways. Nor does
	// a reset that overtook data that the network had lost. Played again by a few, they find the machine less busy.
	lossy := variantOf(t).box.UDP.Loss > 0
	for try, late := 0, played; try < lateTries && len(late) > 0; try++ {
		late = slices.DeleteFunc(slices.Clone(late), func(p *performance) bool {
			overtaken := lossy && p.end == report.EndAborted && !slices.Equal(p.native.saw, p.carried.saw)
			return p.carried.err != nil || !overtaken && !w.foundLate(p.carried.conn) &&
				w.gateways[w.h1].closedConn(from(p.carried.conn)).Carrier != report.CarrierRelay
		})
		for some := range slices.Chunk(late, 4) {
			w.flush()
			w.perform(some)
		}
	}
	relayed := 0
	for _, p := range played {
		t.Run(p.family+"/"+p.name, func(t *testing.T) {
			require.NoError(t, p.native.err)
			require.NoError(t, p.carried.err)
			require.NotEmpty(t, p.native.saw)
			require.Equal(t, p.native.saw, p.carried.saw, "native, and what the gateways make of it")
			if w.ended(t, p.carried.conn, w.via, p.end) {
				relayed++
			}
		})
	}
	require.LessOrEqual(t, relayed, few(len(played)), "relayed, since the proof of the carrier was late")
	w.quiet(t)
}

// performance is a scenario that is played on one family.
type performance struct {
	scenario
	family          string
	addr            func(*testnet.Host) netip.AddrPort
	native, carried outcome
}

// outcome is one of the connections of a performance.
type outcome struct {
	conn apps.Event
	saw  []string
	err  error
}

// playAll plays scenarios with the plain host and with the one that has a gateway.
func (w *world) playAll(list []scenario) []*performance {
	var played []*performance
	for i, sc := range list {
		port := uint16(ownPort + i)
		played = append(played,
			&performance{scenario: sc, family: "ipv4", addr: func(h *testnet.Host) netip.AddrPort { return h.AddrPort4(port) }},
			&performance{scenario: sc, family: "ipv6", addr: func(h *testnet.Host) netip.AddrPort { return h.AddrPort6(port) }},
		)
	}
	w.perform(played)
	return played
}

// perform plays all of them at once.
func (w *world) perform(list []*performance) {
	var all sync.WaitGroup
	for _, p := range list {
		all.Go(func() { p.native = w.play(p, w.h3) })
		all.Go(func() { p.carried = w.play(p, w.h2) })
	}
	all.Wait()
}

func (w *world) play(p *performance, h *testnet.Host) (o outcome) {
	var pr *pair
	if pr, o.err = newPair(w.h1, h, p.addr(h)); o.err != nil {
		return o
	}
	defer pr.close()
	o.conn = pr.event()
	p.play(pr)
	slices.Sort(pr.saw)
	o.saw = pr.saw
	return o
}

// ended requires that both gateways report how a connection ended. It tells whether they have relayed the connection
// instead: the proof of a carrier over a network has a deadline of its own, which a machine may miss.
func (w *world) ended(t *testing.T, e apps.Event, c report.Carrier, end report.End) (relayed bool) {
	t.Helper()
	first := w.gateways[w.h1].closedConn(from(e))
	late := first.Reason == "carrier_unreachable" || first.End == report.EndAborted // then the reason is that of the end
	if c == report.CarrierSoft && first.Carrier == report.CarrierRelay && late {
		c, relayed = report.CarrierRelay, true
	}
	for h, match := range map[*testnet.Host]func(report.ConnInfo) bool{w.h1: from(e), w.h2: at(e)} {
		info := w.gateways[h].closedConn(match)
		require.Equal(t, c, info.Carrier, "%s: %+v", h.Name, info)
		require.Equal(t, end, info.End, "%s: %+v", h.Name, info)
	}
	return relayed
}
