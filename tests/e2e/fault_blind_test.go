package e2e

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/rogue"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// aim is what a host on the path knows of one direction of a connection, and what any other host has to guess.
type aim struct {
	port     uint16
	partner  wire.Header // the last request: queue pair, partition key, PSN, address and key
	answer   wire.Header // the last answer, with its signature
	answered bool
}

// blind is a host that sends to h2 with h1's address.
type blind struct {
	*world
	ear  *rogue.Ear
	send *rogue.Blind
	aim  aim
	g2   *gw
}

// look takes in what has been overheard meanwhile.
func (b *blind) look() *aim {
	for {
		o, ok := b.ear.Heard()
		switch {
		case !ok:
			return &b.aim
		case o.From.Addr() != b.h1.Addr4 || b.aim.port != 0 && o.From.Port() != b.aim.port:
		case o.Opcode == wire.RCAcknowledge:
			b.aim.answer, b.aim.answered = o.Header, true
		case o.Opcode == wire.RCWriteOnly || o.Opcode == wire.RCWriteOnlyImm:
			b.aim.partner, b.aim.port = o.Header, o.From.Port()
		}
	}
}

// counters returns the counters of the server's soft device.
func (b *blind) counters() map[string]uint64 {
	for _, d := range asks(b.g2, (*admin.Client).Devices).Devices {
		if d.Kind == report.DeviceSoft {
			return d.Counters
		}
	}
	return nil
}

// guess is an attack: make returns what to send, and from which port, for number n of a sweep. All that it does not
// change is right.
type guess struct {
	name string
	make func(a *aim, n uint32) (uint16, wire.Header)
	drop string // the counter of the drops
}

// bogus is a WRITE to an address where there is nothing, n PSNs from where the peer was last heard.
func bogus(a *aim, n uint32) wire.Header {
	h := a.partner
	h.Opcode, h.AckReq, h.Length = wire.RCWriteOnly, true, uint32(len(blindPayload))
	h.RKey ^= 0x5a5a5a5a
	h.PSN = wire.PSNAdd(h.PSN, int(n)-blindSweep/8)
	return h
}

func answerOf(a *aim, n uint32, s wire.Syndrome) wire.Header {
	h := a.answer
	h.Syndrome, h.PSN = s, wire.PSNAdd(h.PSN, int(n)-blindSweep/8)
	return h
}

const (
	blindSweep = 16384 // PSNs, an eighth of them before the one that was heard
	blindBurst = 256   // packets at a time: a busy host has no room for more
)

var blindPayload = make([]byte, 64)

// guesses are sweeps by an attacker that has guessed all but one thing. 2^14 packets are nothing compared with what
// is left to guess.
var guesses = []guess{
	{"as of old: the queue pair and a sweep of PSNs", func(a *aim, n uint32) (uint16, wire.Header) {
		h := bogus(a, n)
		h.PKey = 0xffff
		return 0xc000 + uint16(n%16384), h
	}, "drop_key"},
	{"another port", func(a *aim, n uint32) (uint16, wire.Header) { return a.port ^ 1, bogus(a, n) }, "drop_source"},
	{"another queue pair", func(a *aim, n uint32) (uint16, wire.Header) {
		h := bogus(a, n)
		h.DestQP ^= (n + 1) << 4
		return a.port, h
	}, "drop_no_qp"},
	{"PSNs far away", func(a *aim, n uint32) (uint16, wire.Header) {
		h := bogus(a, n)
		h.PSN = wire.PSNAdd(h.PSN, 1<<23)
		return a.port, h
	}, "drop_unexpected"},
	{"the key alone", func(a *aim, n uint32) (uint16, wire.Header) { return a.port, bogus(a, n) }, "drop_refused"},
	{"acknowledgements that are not signed", func(a *aim, n uint32) (uint16, wire.Header) {
		h := answerOf(a, n, wire.ACK)
		h.MSN ^= 1
		return a.port, h
	}, "drop_unexpected"},
	{"refusals that are not signed", func(a *aim, n uint32) (uint16, wire.Header) {
		h := answerOf(a, n, wire.NAKRemoteAccess)
		h.MSN = 0
		return a.port, h
	}, "drop_unexpected"},
	{"gaps that are not signed", func(a *aim, n uint32) (uint16, wire.Header) {
		h := answerOf(a, n, wire.NAKSequence)
		h.MSN = n
		return a.port, h
	}, "drop_unexpected"},
	{"notifications", func(a *aim, n uint32) (uint16, wire.Header) {
		h := bogus(a, n)
		h.Opcode = wire.CNP
		return a.port, h
	}, "drop_unexpected"},
}

// TestFaultBlind has a third host send with the address of a peer's gateway to an idle and to a busy connection, of
// which it knows all but one field. Nothing may come of it: every packet is dropped and counted, no application
// notices, and no connection leaves its queue pair.
func TestFaultBlind(t *testing.T) {
	t.Parallel()
	n := newTally(t)
	b := &blind{world: newWorld(t, testnet.Config{})}
	b.serve(b.h2)
	b.up(b.h1, settings{Carriers: "soft"})
	b.g2 = b.up(b.h2, settings{Carriers: "soft"})
	var err error
	b.ear, err = rogue.NewEar(b.h2.Do, rdmaPort)
	require.NoError(t, err)
	b.send, err = rogue.NewBlind(b.h3.Do, b.h1.Addr4, netip.AddrPortFrom(b.h2.Addr4, rdmaPort))
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.ear.Close(); _ = b.send.Close() })
	for _, g := range matrix.Cells(t, guesses, 3) {
		t.Run("idle/"+g.name, func(t *testing.T) { b.try(t, n, g, false) })
		t.Run("busy/"+g.name, func(t *testing.T) { b.try(t, n, g, true) })
	}
}

// open opens the connection to attack, again if it finds a gateway late.
func (b *blind) open(t *testing.T, size string) (*testnet.Proc, apps.Event) {
	t.Helper()
	for try := 0; ; try++ {
		app, err := b.h1.StartApp("hold", "-size", size, "-patience", "1m", "-to", b.h2.AddrPort4(echoPort).String())
		require.NoError(t, err)
		e := pinged(t, app)
		if try == lateTries || !b.foundLate(e) {
			return app, e
		}
		leaves(t, app)
		b.flush()
	}
}

// chat keeps the connection of a holding client busy until stop is closed.
func chat(t *testing.T, app *testnet.Proc, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		e, err := app.Ask(t.Context(), "ping")
		if !assert.NoError(t, err) || !assert.Equal(t, 1, e.OK, "%+v", e) {
			return
		}
	}
}

// sweep sends all guesses, and returns how many were sent. It waits until the gateway has looked at each burst: one
// that is late is to lose none on the way.
func (b *blind) sweep(t *testing.T, g guess) (sent int) {
	t.Helper()
	for from := uint32(0); from < blindSweep; from += blindBurst {
		received := b.counters()["rx_packets"]
		burst := 0
		for i := range uint32(blindBurst) {
			port, h := g.make(b.look(), from+i)
			if b.send.Send(port, &h, blindPayload[:blindLength(h.Opcode)]) == nil {
				burst++
			}
		}
		require.Eventually(t, func() bool { return b.counters()["rx_packets"]-received >= uint64(burst)*9/10 },
			slowed(30*time.Second), time.Millisecond, "the packets do not arrive")
		sent += burst
	}
	return sent
}

// try attacks one connection.
func (b *blind) try(t *testing.T, n *tally, g guess, busy bool) {
	size := "200"
	if busy {
		size = "3000"
	}
	app, e := b.open(t, size)
	b.look()
	b.aim = aim{}
	pings(t, app, 1)
	require.Eventually(t, func() bool { a := b.look(); return a.port != 0 && a.answered }, 20*time.Second, 10*time.Millisecond)
	time.Sleep(300 * time.Millisecond)
	before := b.counters()
	begun := time.Now()
	stop, talks := make(chan struct{}), sync.WaitGroup{}
	if busy {
		talks.Go(func() { chat(t, app, stop) })
	}
	end := sync.OnceFunc(func() { close(stop); talks.Wait() })
	defer end()
	sent := b.sweep(t, g)
	took := time.Since(begun)
	n.faults(int64(sent))
	end()
	require.Empty(t, b.g2.awaitConn("live", at(e), "").Demoted)
	pings(t, app, 1)
	leaves(t, app)
	after := b.counters()
	dropped := after[g.drop] - before[g.drop]
	of := func(name string) uint64 { return after[name] - before[name] }
	t.Logf("%d packets in %v; %s %d; %d NAKs sent, %d packets sent again for %d timers", sent, took, g.drop, dropped, of("sent_naks"),
		of("retransmits"), of("timeouts"))
	if g.drop == "drop_refused" { // one of the PSNs was the expected one, many left gaps
		require.Positive(t, dropped)
	} else {
		require.Greater(t, dropped, uint64(sent)*9/10)
		require.Zero(t, of("sent_naks"))
	}
	require.Zero(t, of("sequence_naks")+of("rnr_naks"))
	require.LessOrEqual(t, of("retransmits"), of("timeouts"), "a machine that is busy")
	require.LessOrEqual(t, of("cnps"), uint64(1), "the sweep may pass by the first PSN")
	require.Zero(t, after["qp_errors"])
	over := b.g2.closedConn(at(e))
	require.Equal(t, report.EndClosed, over.End)
	require.Empty(t, over.Demoted)
}

// blindLength returns the length of the payload of an opcode's packets.
func blindLength(o wire.Opcode) int {
	if o == wire.RCWriteOnly {
		return len(blindPayload)
	}
	return 0
}
