package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFaultUpgradeDatagrams replaces the gateway of a host on which a program talks by UDP. The program must see no
// error and no wrong datagram, hardly any may be lost, and the new gateway must carry.
func TestFaultUpgradeDatagrams(t *testing.T) {
	t.Parallel()
	count := newTally(t)
	d := newDatagrams(t, false)
	p, err := d.h1.StartApp("ping-udp", "-to", d.h2.AddrPort4(echoUDP).String(), "-patient", "-count", "1500", "-gap", "1ms", "-size", "0,24,1400")
	require.NoError(t, err)
	old := d.g1
	d.g1 = old.upgrade()
	count.faults(1)
	e := result(t, p)
	count.result(e)
	require.Zero(t, e.Failed, "%+v", e)
	require.Less(t, e.Lost, 150, "%+v", e)
	t.Logf("%d of 1500 lost", e.Lost)
	d.prove(t, d.h2.AddrPort4(echoUDP))
	d.prove(t, d.h2.AddrPort6(echoUDP))
	old.ended(t)
	require.Zero(t, count.failed())
}
