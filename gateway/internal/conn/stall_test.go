package conn

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

func TestStuckDirections(t *testing.T) {
	ready, shut := legReady{readable: true, writable: true}, legReady{}
	for what, c := range map[string]struct {
		tx   txStand
		leg  legReady
		want bool
	}{
		"idle":                               {txStand{}, legReady{writable: true}, false},
		"bytes and room":                     {txStand{sent: 5, freed: 1}, ready, true},
		"the end was read":                   {txStand{ended: true}, ready, false},
		"the peer's application reads not":   {txStand{sent: 5, freed: 1, blocked: rsocket.BlockedGrant}, ready, false},
		"nor takes messages":                 {txStand{sent: 5, freed: 1, blocked: rsocket.BlockedCredit}, ready, false},
		"everything consumed and no grant":   {txStand{sent: 5, freed: 5, blocked: rsocket.BlockedGrant}, ready, true},
		"no completions":                     {txStand{sent: 5, freed: 1, blocked: rsocket.BlockedSQ}, ready, true},
		"the same, but nothing to be sent":   {txStand{sent: 5, freed: 5, blocked: rsocket.BlockedSQ}, shut, false},
		"the stream is closed":               {txStand{sent: 5, freed: 5, blocked: rsocket.BlockedClosed}, ready, false},
		"send buffer full of what is unread": {txStand{sent: 5, freed: 1, blocked: rsocket.BlockedSndbuf}, ready, false},
	} {
		require.Equal(t, c.want, c.tx.stuck(c.leg), what)
	}
	for what, c := range map[string]struct {
		rx   rxStand
		leg  legReady
		want bool
	}{
		"idle":                         {rxStand{received: 5, consumed: 5}, ready, false},
		"the application reads not":    {rxStand{received: 5, consumed: 1}, shut, false},
		"it would":                     {rxStand{received: 5, consumed: 1}, ready, true},
		"bytes the peer said it sent":  {rxStand{received: 5, consumed: 5, known: true, final: 9}, shut, true},
		"an end that is not passed on": {rxStand{received: 5, consumed: 5, known: true, final: 5}, shut, true},
		"all over":                     {rxStand{received: 5, consumed: 5, known: true, final: 5, ended: true}, ready, false},
	} {
		require.Equal(t, c.want, c.rx.stuck(c.leg), what)
	}
	books := func(sent, allowed, read uint64) life.Ledger {
		return life.Ledger{Sent: sent, Allowed: allowed, Read: read}
	}
	left := life.Ledger{Peer: life.PeerLeft, Demoted: true, Read: 5}
	for what, c := range map[string]struct {
		st     relayStand
		leg    legReady
		tx, rx bool
	}{
		"idle":                      {relayStand{books: books(5, 9, 5)}, legReady{writable: true}, false, false},
		"the window is closed":      {relayStand{books: books(9, 9, 9)}, ready, false, false},
		"bytes and room":            {relayStand{books: books(5, 9, 5)}, ready, true, false},
		"a tail and room":           {relayStand{books: books(5, 9, 7)}, shut, true, false},
		"a tail and no answer":      {relayStand{books: left}, shut, true, false},
		"no record leaves":          {relayStand{books: books(9, 9, 9), pushing: true}, shut, true, false},
		"the application reads not": {relayStand{books: life.Ledger{Received: 5, Consumed: 1}}, shut, false, false},
		"it would":                  {relayStand{books: life.Ledger{Received: 5, Consumed: 1, Tx: life.TxEnded}}, ready, false, true},
		"all over":                  {relayStand{books: life.Ledger{Received: 5, Consumed: 5, Tx: life.TxEnded}}, ready, false, false},
		"the flow ends":             {relayStand{books: life.Ledger{Received: 5, Consumed: 1, Sent: 1, Allowed: 9}, over: true}, ready, false, false},
	} {
		require.Equal(t, c.tx, c.st.txStuck(c.leg), what)
		require.Equal(t, c.rx, c.st.rxStuck(c.leg), what)
	}
}

// shortStall is the timeout of tests, stallRounds the looks after which one fires
// at the latest, with many to spare.
const (
	shortStall  = 40 * time.Millisecond
	stallRounds = 200
)

// lookUntil looks for stalls until both flows are over; false if they are not
// after so many looks.
func (c *pairConn) lookUntil(rounds int) bool {
	for range rounds {
		for _, g := range c.p.g {
			lookForStalls(g.all(), shortStall)
		}
		if c.flow[0].isBuried() && c.flow[1].isBuried() {
			return true
		}
		time.Sleep(shortStall / life.StallLooks)
	}
	return false
}

func (c *pairConn) stalls() (n uint64) {
	for _, g := range c.p.g {
		for _, v := range g.snapshot().Stalls {
			n += v
		}
	}
	return n
}

// aborted checks that the flows ended as stalled, by one side's decision.
func (c *pairConn) aborted(t *testing.T) {
	t.Helper()
	require.Positive(t, c.stalls())
	for _, f := range c.flow {
		require.Equal(t, life.Aborted, f.state())
		require.Equal(t, "stalled", f.Info(time.Now()).Reason, f.Side)
	}
	_ = c.app[0].SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, c.app[0])
	require.ErrorIs(t, err, unix.ECONNRESET)
}

// TestStallOfLostBytes: the peer says that there is more than ever comes.
func TestStallOfLostBytes(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			c := p.dial(t, kind)
			s, there := p.g[1].shards[0], c.flow[1].chosen()
			s.Call(func() { delete(p.g[1].queueOf(t, there).Members, there.QP.Num()) }) // its completions go nowhere
			_, err := c.app[0].Write([]byte("lost"))
			require.NoError(t, err)
			require.NoError(t, c.app[0].CloseWrite())
			require.True(t, c.lookUntil(stallRounds))
			c.aborted(t)
			c.closeApps()
			c.over(t)
		})
	}
}

// TestStallOfThePeersReader: records that the peer's gateway does not read.
func TestStallOfThePeersReader(t *testing.T) {
	p := newPair(t)
	a, b := newFakeWires(1000, 1000)
	c := p.begin(t, a, b)
	for _, f := range c.flow {
		f.call(func() { f.carryBy(negotiate.CarrierRelay) })
	}
	c.flow[0].call(func() { c.flow[0].records(nil) }) // the other side never begins
	_, err := c.app[0].Write(make([]byte, 10_000))
	require.NoError(t, err)
	g := p.g[0]
	for range stallRounds {
		lookForStalls(g.all(), shortStall)
		time.Sleep(shortStall / life.StallLooks)
		if c.flow[0].isBuried() {
			break
		}
	}
	require.Equal(t, "stalled", c.flow[0].Info(time.Now()).Reason)
	require.Equal(t, map[report.Carrier]uint64{report.CarrierRelay: 1}, g.snapshot().Stalls)
	c.flow[1].call(func() { c.flow[1].abort(negotiate.ReasonAppReset, false) })
	c.closeApps()
	c.over(t)
}

// TestNoStallInAPartition: a shard that is never told of what its application writes is
// found out, and not while the peer is not heard.
func TestNoStallInAPartition(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			a, b := newFakeWires(1<<20, 1<<20)
			c := p.dial(t, kind, a, b)
			a.silence(true)
			b.silence(true)
			s := p.g[0].shards[0]
			s.Call(func() { assert.NoError(t, s.Remove(c.flow[0].picked.fd)) })
			_, err := c.app[0].Write([]byte("anybody there?"))
			require.NoError(t, err)
			require.False(t, c.lookUntil(20))
			require.Zero(t, c.stalls())
			a.silence(false)
			require.True(t, c.lookUntil(stallRounds))
			c.aborted(t)
			c.closeApps()
			p.empty(t)
		})
	}
}

func (w *fakeWire) silence(on bool) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	w.silent = on
}

// TestNoStallOfSlowApplications: neither one that does not read, nor one that
// does not write, nor a half-closed connection stands still by the fault of a
// gateway, and everything arrives in the end.
func TestNoStallOfSlowApplications(t *testing.T) {
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			c := p.dial(t, kind)
			require.False(t, c.lookUntil(10), "idle")
			const size = 48 << 20 // more than all buffers on the way
			sent := make(chan error, 1)
			go func() {
				_, err := c.app[0].Write(make([]byte, size))
				sent <- errors.Join(err, c.app[0].CloseWrite())
			}()
			require.False(t, c.lookUntil(20), "not read")
			n, err := io.Copy(io.Discard, io.LimitReader(c.app[1], size))
			require.NoError(t, err)
			require.EqualValues(t, size, n)
			require.NoError(t, <-sent)
			require.False(t, c.lookUntil(10), "half closed")
			_, err = c.app[1].Write([]byte("answer"))
			require.NoError(t, err)
			require.NoError(t, c.app[1].CloseWrite())
			got, err := io.ReadAll(c.app[0])
			require.NoError(t, err)
			require.Equal(t, "answer", string(got))
			require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
			require.Zero(t, c.stalls())
			c.closeApps()
			p.empty(t)
		})
	}
}

// queueOf is the completion queue of a carry.
func (g *fakeGateway) queueOf(t *testing.T, c *carry) *loop.Queue {
	switch prov := g.providerOf(c.Kind).(type) {
	case *carrier.Shm:
		return prov.Queue(c.Shard)
	case *carrier.Soft:
		at, err := prov.PortOf(c.f.Tuple.Local.Addr())
		require.NoError(t, err)
		return at.Unit.Queue(c.Shard)
	}
	t.Fatal("no device of the carrier")
	return nil
}
