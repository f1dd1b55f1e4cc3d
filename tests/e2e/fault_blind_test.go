package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
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
	for _, d := range b.g2.devices() {
		if d.Kind == report.DeviceSoft {
			return d.Counters
		}
	}
	return nil
}

// lost returns how many packets the server's kernel had no room for in the sockets of the soft device, because the gateway
// got no processor.
func (b *blind) lost(t *testing.T) (n uint64) {
	t.Helper()
	at := fmt.Sprintf(":%04X", rdmaPort)
	for _, table := range []string{"udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", b.g2.daemon(), table))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 13 || !strings.HasSuffix(f[1], at) {
				continue
			}
			drops, err := strconv.ParseUint(f[len(f)-1], 10, 64)
			require.NoError(t, err)
			n += drops
		}
	}
	return n
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

const blindSweep = 16384 // PSNs, an eighth of them before the one that was heard

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

// try attacks one connection.
func (b *blind) try(t *testing.T, n *tally, g guess, busy bool) {
	b.look()
	b.aim = aim{}
	size := "200"
	if busy {
		size = "3000"
	}
	app, err := b.h1.StartApp("hold", "-size", size, "-patience", "1m", "-to", b.h2.AddrPort4(echoPort).String())
	require.NoError(t, err)
	enough, asked := make(chan struct{}), make(chan error, 1)
	if !busy {
		close(enough) // with the first answer
	}
	go func() { asked <- askUntil(t.Context(), app, enough) }()
	require.Eventually(t, func() bool { a := b.look(); return a.port != 0 && a.answered }, 20*time.Second, 10*time.Millisecond)
	time.Sleep(300 * time.Millisecond)
	before, lost := b.counters(), b.lost(t)
	begun := time.Now()
	sent := 0
	for i := range uint32(blindSweep) {
		port, h := g.make(b.look(), i)
		if b.send.Send(port, &h, blindPayload[:blindLength(h.Opcode)]) == nil {
			sent++
		}
		if i%256 == 0 { // give the gateway time to look at all of them
			time.Sleep(3 * time.Millisecond)
		}
	}
	took := time.Since(begun)
	n.faults(int64(sent))
	live := b.g2.conns()
	require.Len(t, live, 1)
	require.Empty(t, live[0].Demoted)
	local := live[0].Remote
	if busy {
		close(enough)
	}
	require.NoError(t, <-asked, "the application")
	lastPing(t, app)
	lost = b.lost(t) - lost
	after := b.counters()
	dropped := after[g.drop] - before[g.drop]
	of := func(name string) uint64 { return after[name] - before[name] }
	t.Logf("%d packets in %v; %s %d, %d lost before; %d NAKs sent, %d packets sent again for %d timers", sent, took, g.drop, dropped, lost,
		of("sent_naks"), of("retransmits"), of("timeouts"))
	require.Positive(t, dropped+lost)
	if g.drop != "drop_refused" { // there one of the PSNs was the expected one, many left gaps
		require.Positive(t, dropped)
		require.Greater(t, dropped+lost, uint64(sent)*9/10)
		require.Zero(t, of("sent_naks"))
	}
	require.Zero(t, of("sequence_naks")+of("rnr_naks"))
	require.LessOrEqual(t, of("retransmits"), of("timeouts"), "a machine that is busy")
	require.LessOrEqual(t, of("cnps"), uint64(1), "the sweep may pass by the first PSN")
	require.Zero(t, after["qp_errors"])
	over := b.g2.closedConn(func(c report.ConnInfo) bool { return c.Remote == local })
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
