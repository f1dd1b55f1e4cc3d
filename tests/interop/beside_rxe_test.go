package interop

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// TestBesideRXE checks that a gateway on a machine whose RoCEv2 port belongs to the kernel's rdma_rxe carries on its
// alternate port, both ways, and reports the device.
func TestBesideRXE(t *testing.T) {
	m := newMachines(t, true)
	ctx := patience(t, 3*time.Minute)

	list := m.guestDevices(t)
	require.Len(t, list.Devices, 1)
	require.Equal(t, report.DeviceActive, list.Devices[0].State)
	require.EqualValues(t, 4793, list.Devices[0].UDPPort)
	require.Equal(t, "receives on UDP port 4793: UDP port 4791 is in use by rxe0/1, an RDMA device in software", list.Devices[0].Note)

	require.Equal(t, "shared", list.RDMA.Namespaces)
	require.Len(t, list.RDMA.Adapters, 1)
	rxe := &list.RDMA.Adapters[0]
	require.Equal(t, []string{guest.Device, "CA", "eth0", ""}, []string{rxe.Name, rxe.Node, rxe.Parent, rxe.Driver})
	require.Equal(t, &sysfs.Node{Path: "/dev/infiniband/uverbs0"}, rxe.Verbs)
	require.Contains(t, rxe.Use, "qp")
	port := &rxe.Ports[0]
	require.Equal(t, []string{"Ethernet", "ACTIVE", "LinkUp", ""}, []string{port.LinkLayer, port.State, port.Physical, port.Unusable})
	var gids []netip.Addr
	for i := range port.GIDs {
		g := &port.GIDs[i]
		require.Equal(t, []string{sysfs.RoCEv2, "eth0"}, []string{g.Type, g.Device})
		gids = append(gids, g.Addr())
	}
	require.Subset(t, gids, []netip.Addr{m.guest.Addr4, m.guest.Addr6})

	_, err := m.host.RunApp(ctx, "transfer", "-to", at(m.guest.Addr4, transferPort), "-up", "3000000", "-down", "3000000")
	require.NoError(t, err)
	back := m.start(t, appInGuest("transfer", "-to", at(m.host.Addr6, transferPort), "-up", "3000000", "-down", "3000000")...)
	require.Zero(t, result(ctx, t, back).Failed)
	for _, s := range m.both(t) {
		require.EqualValues(t, 2, s.FlowsTotal[report.CarrierSoft], "%+v", s)
		require.Empty(t, s.Degraded)
	}

	// The daemon has no privilege over files.
	m.inGuestRun(t, "chmod", "000", "/dev/infiniband/uverbs0")
	list = m.guestDevices(t)
	require.Equal(t, "/dev/infiniband/uverbs0: no permission to read and write it", list.RDMA.Adapters[0].Ports[0].Unusable)
	m.inGuestRun(t, "rm", "/dev/infiniband/uverbs0")
	require.Contains(t, m.inGuestRun(t, guestProgram, "devices", "--socket", "/run/admin.sock"), "rxe0/1: cannot be used: /dev/infiniband/uverbs0: no such file")
	require.Contains(t, m.inGuestRun(t, guestProgram, "check", "-c", "/run/smcgw.yaml"), "# adapter: rxe0/1: Ethernet, ACTIVE, 10Gb/sec, software on eth0, firmware -\n")
}

func (m *machines) guestDevices(t *testing.T) (list admin.DeviceList) {
	t.Helper()
	askIn(patience(t, time.Minute), t, m.guest, &list, "devices")
	return list
}

// inGuestRun runs a program in the guest to its end.
func (m *machines) inGuestRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := m.guest.Run(patience(t, time.Minute), name, args...)
	require.NoError(t, err, out)
	return out
}

// both returns the status of both gateways.
func (m *machines) both(t *testing.T) []report.Status {
	t.Helper()
	host, inGuest := m.status(patience(t, time.Minute), t)
	return []report.Status{host, inGuest}
}
