package negotiate

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// Hostile peers: whatever bytes come, in whatever pieces, a machine neither panics nor hoards, says at most its word or
// two, and ends when its deadlines pass.

func FuzzClientReceive(f *testing.F) {
	f.Add(vector(f, "accept"), uint8(7))
	f.Add(vector(f, "accept-infiniband"), uint8(7))
	f.Add(vector(f, "decline"), uint8(1))
	f.Add([]byte("220 smtp"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		c := NewClient(ClientConfig{}, goldenProposal(t))
		sends := countSends(c.Start(t0, testRTT))
		for _, piece := range cut(b, step) {
			sends += countSends(c.Receive(t0, piece))
			require.LessOrEqual(t, len(c.in.buf), MaxMessageLen+len(piece))
		}
		for i := 0; i < 64 && !c.Deadline().IsZero(); i++ {
			sends += countSends(c.Tick(c.Deadline()))
		}
		v, ok := c.Verdict()
		require.True(t, ok)
		require.Equal(t, OutcomeReleased, v.Outcome)
		require.LessOrEqual(t, sends, 2+int(askTime/askInterval))
	})
}

func FuzzServerReceive(f *testing.F) {
	both := append(vector(f, "proposal"), vector(f, "confirm")...)
	f.Add(both, uint8(9), uint8(ConfirmedYes))
	f.Add(append(vector(f, "proposal"), vector(f, "decline")...), uint8(200), uint8(ConfirmedUnknown))
	f.Add(append(vector(f, "proposal"), vector(f, "ask")...), uint8(200), uint8(ConfirmedYes))
	f.Add([]byte("SMTP"), uint8(1), uint8(ConfirmedNo))
	f.Fuzz(func(t *testing.T, b []byte, step, confirmed uint8) {
		s := NewServer(ServerConfig{}, testNonce)
		sends := countSends(s.Start(t0, testRTT, Confirmed(confirmed%3)))
		for _, piece := range cut(b, step) {
			sends += countSends(s.Receive(t0, piece))
			sends += countSends(served(s, t0, goldenAccept(t)))
			if s.Reading() {
				require.LessOrEqual(t, len(s.in.buf), MaxMessageLen+len(piece))
			}
		}
		for now, i := t0, 0; i < 8 && !s.Deadline().IsZero(); i++ {
			now = now.Add(2 * maxBudget)
			sends += countSends(s.Tick(now))
			s.RawDialled(now, true, ReasonNone)
		}
		s.RawDialled(t0.Add(time.Hour), true, ReasonNone)
		_, ok := s.Verdict()
		require.True(t, ok, s.Stage())
		require.LessOrEqual(t, sends, 1)
	})
}

// FuzzServerReceiveWithKeys: whatever bytes come, a server with keys serves no client without one of them, and speaks
// once.
func FuzzServerReceiveWithKeys(f *testing.F) {
	sealed, _ := Seal(vector(f, "proposal"), 0, otherKey, Chain{Binding: testBinding, From: FromClient})
	f.Add(sealed, uint8(200))
	f.Add(append(vector(f, "proposal"), vector(f, "decline-mac")...), uint8(9))
	f.Add(append(vector(f, "proposal"), vector(f, "confirm-mac")...), uint8(255))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		s := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
		todo := s.Start(t0, testRTT, ConfirmedYes)
		for _, piece := range cut(b, step) {
			todo = append(todo, s.Receive(t0, piece)...)
		}
		for now, i := t0, 0; i < 8 && !s.Deadline().IsZero(); i++ {
			now = now.Add(2 * maxBudget)
			todo = append(todo, s.Tick(now)...)
		}
		require.LessOrEqual(t, countSends(todo), 1)
		for _, a := range todo {
			require.NotContains(t, []string{"Serve", "Carry", "Records"}, reflect.TypeOf(a).Name())
		}
	})
}

func countSends(todo []Action) (n int) {
	for _, a := range todo {
		if _, ok := a.(Send); ok {
			n++
		}
	}
	return n
}

// cut cuts b into pieces of step + 1 bytes.
func cut(b []byte, step uint8) (pieces [][]byte) {
	for len(b) > 0 {
		n := min(len(b), int(step)+1)
		pieces, b = append(pieces, b[:n]), b[n:]
	}
	return pieces
}

// vector returns the bytes of a golden vector.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	return golden.Vector(t, name)
}

// requireTruncationFails checks that no proper prefix of b parses.
func requireTruncationFails(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for i := range b {
		require.ErrorIs(t, parse(b[:i]), ErrShort, "prefix of %d bytes", i)
	}
	require.NoError(t, parse(b))
}

// fuzzMessage checks that a message which is read survives being written, and that
// no more bytes are taken than there are, and all that were written.
func fuzzMessage[T any](f *testing.F, parse func([]byte) (T, int, error), encode func(T) []byte) {
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, encoded, ok := golden.RoundTrip(t, b, func(b []byte) (v T, err error) {
			v, n, err = parse(b)
			require.LessOrEqual(t, n, len(b))
			return v, err
		}, encode)
		if ok {
			require.Len(t, encoded, n)
		}
	})
}
