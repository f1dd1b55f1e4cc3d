package conn

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestServicePort: that of the server, on either side; no fault is injected unasked.
func TestServicePort(t *testing.T) {
	client := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:7000")}
	require.EqualValues(t, 7000, ServicePort(client, report.SideClient))
	require.EqualValues(t, 7000, ServicePort(host.Tuple{Local: client.Remote, Remote: client.Local}, report.SideServer))
	require.False(t, (&Flow{env: &Env{}}).step(faults.Offered))
}
