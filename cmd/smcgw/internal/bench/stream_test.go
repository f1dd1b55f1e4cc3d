package bench

import (
	"context"
	"errors"
	"net"
	"net/netip"
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

func TestPortRanges(t *testing.T) {
	r := parsePorts("32768\t60999\n")
	require.Equal(t, portRange{32768, 60999}, r)
	require.Equal(t, portRange{32768, 42177}, r.part(0, 3))
	require.Equal(t, portRange{42178, 51587}, r.part(1, 3))
	require.Equal(t, portRange{51588, 60997}, r.part(2, 3))
	require.Equal(t, portRange{1, 65535}, portRange{1, 65535}.part(0, 1))
	require.Zero(t, portRange{1000, 2000}.part(0, 2))
	require.Zero(t, portRange{}.part(0, 1))
	for _, s := range []string{"", "1", "x y", "0 5", "9 5", "1 65536"} {
		require.Zero(t, parsePorts(s), s)
	}
	require.NotZero(t, systemPorts())
}

// FuzzPorts: whatever the kernel says is a range with ports in it, or none.
func FuzzPorts(f *testing.F) {
	f.Add("32768\t60999\n")
	f.Fuzz(func(t *testing.T, s string) {
		if r := parsePorts(s); r != (portRange{}) {
			require.Positive(t, r.low)
			require.GreaterOrEqual(t, r.high, r.low)
		}
	})
}

func TestDialTakesAPortOfTheRange(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", at)
		require.NoError(t, err)
		to := netip.MustParseAddrPort(ln.Addr().String())
		r := systemPorts().part(1, 3)
		for range 8 {
			c, err := dial(t.Context(), to, r)
			require.NoError(t, err)
			local, _, err := ends(c)
			require.NoError(t, err)
			require.GreaterOrEqual(t, local.Port(), r.low)
			require.LessOrEqual(t, local.Port(), r.high)
			require.NoError(t, c.Close())
		}
		require.NoError(t, ln.Close())
	}
}
