package soft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// deaf is the poller of a loop that never sleeps.
type deaf struct{}

func (deaf) Add(int) error    { return nil }
func (deaf) Remove(int) error { return nil }

func openSide(t testing.TB, addr string, port uint16) verbstest.Side {
	d, err := Open(Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}, UDPPort: port})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	pd, err := d.AllocPD()
	require.NoError(t, err)
	dr, err := d.Drive(0, deaf{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dr.Close()) })
	return verbstest.Side{Device: d, PD: pd, Driver: dr}
}

func openPair(t testing.TB, a, b string) *verbstest.Pair {
	p := &verbstest.Pair{A: openSide(t, a, 24791), B: openSide(t, b, 24792)}
	p.Attr = func(side *verbstest.Side, dest uint32) verbs.QPAttr {
		attr := verbs.ConnectAttr(dest)
		peer, port := b, uint16(24792)
		if side == &p.B {
			peer, port = a, 24791
		}
		attr.AH = verbs.AHAttr{DGID: verbs.GIDOf(netip.MustParseAddr(peer)), UDPPort: port, Port: 1}
		return attr
	}
	return p
}

func TestConformance(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		verbstest.Run(t, func(t testing.TB) *verbstest.Pair { return openPair(t, "127.0.0.1", "127.0.0.1") })
	})
	t.Run("IPv6", func(t *testing.T) {
		verbstest.Run(t, func(t testing.TB) *verbstest.Pair { return openPair(t, "::1", "::1") })
	})
}
