package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestDatagramsBecomeCarried checks that a program that talks while the gateways find each other loses nothing and
// gets nothing twice.
func TestDatagramsBecomeCarried(t *testing.T) {
	t.Parallel()
	d := newDatagramWorld(t)
	d.server = d.serveNumbered(d.h2)
	d.g1, d.g2 = d.up(d.h1, datagramSettings()), d.up(d.h2, datagramSettings())
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		before := d.g1.udpStats()
		e := d.ping(t, d.h1, addr(d.h2, echoUDP), "-count", "3000", "-gap", "1ms", "-size", "0,24,1400")
		require.Zero(t, e.Late, "%+v", e)
		after := d.g1.udpStats()
		require.Greater(t, after.Sent[d.via], before.Sent[d.via])
		require.Less(t, after.Sent[d.via]-before.Sent[d.via], uint64(3000), "the first ones go natively")
	})
}
