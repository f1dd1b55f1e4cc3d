package gateway_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/memhost"
)

// TestCarriedAsOperatorsSeeIt: a connection between two gateways, from its offer to the
// reset of an operator, in the numbers and lists of the client's.
func TestCarriedAsOperatorsSeeIt(t *testing.T) {
	const port, size, patience = 7000, 1000, 30 * time.Second
	n, err := memhost.NewNetwork(memhost.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	var hosts [2]*memhost.Host
	var clients [2]*admin.Client
	for i, name := range []string{"client", "server"} {
		hosts[i], err = n.AddHost(name)
		require.NoError(t, err)
		g, err := hosts[i].StartGateway(memhost.GatewayConfig{
			HeartbeatTimeout: 2 * time.Second,
			Config: config.Config{
				Mode: report.ModeEnforce, Shards: 1, Carriers: []report.DeviceKind{report.DeviceShm},
				Policy: []config.Rule{{Name: "r", Match: config.Match{Ports: config.Ports(port)}, Action: report.ActionAccelerate}},
			},
		})
		require.NoError(t, err)
		clients[i] = g.Admin()
	}
	v4, v6, err := hosts[1].Listen(port)
	require.NoError(t, err)
	defer v6.Close()
	defer v4.Close()
	app, err := hosts[0].Dial(t.Context(), "tcp", v4.Addr().String())
	require.NoError(t, err)
	defer app.Close()
	served, err := v4.Accept()
	require.NoError(t, err)
	defer served.Close()
	_, err = app.Write(make([]byte, size))
	require.NoError(t, err)
	_, err = io.ReadFull(served, make([]byte, size))
	require.NoError(t, err)

	st, err := clients[0].Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, st.Flows[report.CarrierShm], "%+v", st)
	require.EqualValues(t, 1, st.FlowsTotal[report.CarrierShm])
	require.EqualValues(t, size, st.BytesTotal[report.CarrierShm].Tx)
	require.Positive(t, st.Memory.UsedBytes)
	require.Equal(t, 1, st.Peers)
	require.Empty(t, st.Degraded)
	require.Eventually(t, func() bool { // counted after the write that the application has read
		list, err := clients[1].Conns(t.Context(), report.ConnQuery{})
		return err == nil && len(list.Conns) == 1 && list.Conns[0].State == "carrying" &&
			list.Conns[0].Side == report.SideServer && list.Conns[0].RxBytes == size
	}, patience, 10*time.Millisecond)

	off, err := clients[0].OffNow(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, off.Count, "%+v", off)
	for _, c := range []io.Reader{app, served} {
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
	}
	for _, c := range clients {
		require.Eventually(t, func() bool {
			list, err := c.Conns(t.Context(), report.ConnQuery{Closed: true})
			return err == nil && len(list.Conns) == 1 && list.Conns[0].Reason == "off"
		}, patience, 10*time.Millisecond)
	}
	st, err = clients[0].Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, st.Flows[report.CarrierShm])
	require.EqualValues(t, size, st.BytesTotal[report.CarrierShm].Tx, "ended connections still count")
}
