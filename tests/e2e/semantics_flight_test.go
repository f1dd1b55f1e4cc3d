package e2e

import (
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// flight is an application with SO_KEEPALIVE and three probes one second apart, whose path is cut for flightCut.
type flight struct {
	silence
	sends []time.Duration // when it writes flightBytes, counted from the cut
	half  time.Duration   // when it ends its direction
	asks  bool            // its peer's application, which has keepalive, writes at once
	dies  bool            // it learns of the cut: it has nothing in flight
}

const (
	flightCut   = 6 * time.Second
	flightBytes = 1000
	// flightLate is how long after the cut what was sent during it may arrive: the retransmissions have backed off.
	flightLate = 30 * time.Second
)

var flights = []flight{
	{silence: silence{name: "bytes of the client", keep: 3}, sends: []time.Duration{0}},
	{silence: silence{name: "bytes of the server", keep: 3, server: true}, sends: []time.Duration{0}},
	{silence: silence{name: "one probe", keep: 1}, sends: []time.Duration{0}},
	{silence: silence{name: "bytes after a probe", keep: 3}, sends: []time.Duration{1500 * time.Millisecond}},
	{silence: silence{name: "more and more bytes", keep: 3, server: true}, sends: []time.Duration{0, time.Second, 4 * time.Second}},
	{silence: silence{name: "the end of its bytes", keep: 3}, half: 100 * time.Millisecond},
	{silence: silence{name: "nothing", keep: 3}, dies: true},
	{silence: silence{name: "the server's nothing", keep: 3, server: true}, dies: true},
	{silence: silence{name: "what was acknowledged before", keep: 3, waits: true}, dies: true},
	{silence: silence{name: "the bytes of its peer", keep: 3, server: true}, asks: true, dies: true},
}

// fly does what the application does during the cut.
func (f *flight) fly(s *silent) error {
	began := time.Now()
	other := s.c
	if s.who == s.c {
		other = s.s
	}
	if f.asks {
		if _, err := other.Write(make([]byte, flightBytes)); err != nil {
			return fmt.Errorf("the peer: %w", err)
		}
	}
	for _, at := range f.sends {
		time.Sleep(time.Until(began.Add(at)))
		if _, err := s.who.Write(make([]byte, flightBytes)); err != nil {
			return fmt.Errorf("after %s: %w", at, err)
		}
	}
	if f.half > 0 {
		time.Sleep(time.Until(began.Add(f.half)))
		return s.who.CloseWrite()
	}
	return nil
}

// arrived reads at the other end what the application has sent, up to its end.
func (f *flight) arrived(t *testing.T, s *silent, what string) {
	t.Helper()
	other := s.c
	if s.who == s.c {
		other = s.s
	}
	require.NoError(t, other.SetReadDeadline(time.Now().Add(flightLate)))
	n, err := io.ReadFull(other, make([]byte, flightBytes*len(f.sends)))
	require.NoError(t, err, "%s: %d bytes", what, n)
	if f.half > 0 {
		_, err = other.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, what)
	}
	_, err = other.Write([]byte{1}) // both directions must live
	require.NoError(t, err, what)
	require.Eventually(t, func() bool { return s.read.Load() == 1 }, flightLate, 10*time.Millisecond, "%s: %v", what, s.err)
}

// TestSemanticsOfKeepaliveBesideBytes checks that, as a kernel sends no probes while bytes are in flight, a cut that
// retransmissions outlive ends no connection with bytes in flight, whatever carries it, and that a connection without
// any ends as natively.
func TestSemanticsOfKeepaliveBesideBytes(t *testing.T) {
	t.Parallel()
	silentWays(t, func(t *testing.T, w *world, server *testnet.Host, way string) {
		all := make([]*silent, len(flights))
		for i := range flights {
			all[i] = w.silenceOf(t, server, flights[i].silence, uint16(i))
		}
		w.demoted(t, way, len(all))
		time.Sleep(silenceAfter)
		w.carryAll(t, way, len(all))
		for _, s := range all {
			require.True(t, s.alive(), "%s: %v", s.name, s.err)
			if s.waits { // the other end has not read the question
				require.NoError(t, s.s.SetReadDeadline(time.Now().Add(slack)))
				_, err := io.ReadFull(s.s, make([]byte, len("question")))
				require.NoError(t, err)
			}
		}
		require.NoError(t, w.net.SetBox(testnet.Box{Blackhole: true}))
		cut := time.Now()
		flown := make(chan error, len(all))
		for i, s := range all {
			go func() { flown <- flights[i].fly(s) }()
		}
		time.Sleep(time.Until(cut.Add(flightCut)))
		for range all {
			require.NoError(t, <-flown)
		}
		for i, s := range all {
			what := fmt.Sprintf("%s, %s", way, s.name)
			if !flights[i].dies {
				require.True(t, s.alive(), "%s: %v after %s", what, s.err, s.at.Sub(cut))
			}
		}
		require.NoError(t, w.net.SetBox(testnet.Box{}))
		for i, s := range all {
			what := fmt.Sprintf("%s, %s", way, s.name)
			if !flights[i].dies {
				flights[i].arrived(t, s, what)
				t.Logf("%s: arrived %s after the cut", what, time.Since(cut.Add(flightCut)))
				continue
			}
			require.False(t, s.alive(), what)
			t.Logf("%s: %s after %s", what, s.err, s.at.Sub(cut))
			require.ErrorIs(t, s.err, syscall.ETIMEDOUT, what)
			if flights[i].asks && way == "rdma-shm" {
				require.EqualValues(t, flightBytes, s.read.Load(), "memory is not cut")
			}
		}
	})
}
