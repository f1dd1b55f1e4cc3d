package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A work beside a stream has the stream beside it for as long as it takes, and both
// are looked up afterwards.
func TestBesideStream(t *testing.T) {
	to, token := serveHere(t, nil)
	s, err := open(t.Context(), to, token)
	require.NoError(t, err)
	defer s.close()
	before, err := s.sample()
	require.NoError(t, err)
	var meanwhile [2]reading
	m, err := besideStream(func(s *session, ctx context.Context, d time.Duration) (measured, error) {
		m := measured{began: time.Now()}
		for i := range meanwhile {
			if meanwhile[i], err = s.sample(); err != nil {
				return m, err
			}
			now := meanwhile[i].Received
			for r := meanwhile[i]; r.Received == now; { // the stream flows
				if r, err = s.sample(); err != nil {
					return m, err
				}
			}
		}
		return m, s.request(ctx, &m)
	})(s, t.Context(), 10*time.Millisecond)
	require.NoError(t, err)
	require.Greater(t, meanwhile[0].Received, before.Received)
	require.Greater(t, meanwhile[1].Received, meanwhile[0].Received)
	require.Len(t, m.conns, 2)
}

// A work that fails ends the stream, and a stream that fails ends the run.
func TestBesideStreamFails(t *testing.T) {
	to, token := serveHere(t, nil)
	s, err := open(t.Context(), to, token)
	require.NoError(t, err)
	failed := errors.New("no luck")
	_, err = besideStream(func(*session, context.Context, time.Duration) (measured, error) { return measured{}, failed })(s, t.Context(), time.Second)
	require.ErrorIs(t, err, failed)

	s.close() // whose orders are refused from now on
	require.Eventually(t, func() bool {
		_, err = besideStream(func(*session, context.Context, time.Duration) (measured, error) { return measured{}, nil })(s, t.Context(), time.Second)
		return errors.Is(err, errStreamEnded)
	}, 30*time.Second, time.Millisecond)
}
