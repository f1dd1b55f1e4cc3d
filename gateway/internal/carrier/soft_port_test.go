package carrier

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// besideAddrs are two addresses of a host with an adapter at the first, and its
// peer's.
var besideAddrs = [3]netip.Addr{twohosts.Addr(3), twohosts.Addr(4), twohosts.Addr(5)}

// hardware is an adapter that speaks for an address.
func hardware(a netip.Addr) sysfs.RoCEPorts {
	return sysfs.RoCEPorts{a: {Name: "mlx5_0/1", Hardware: true}}
}

func besideConfig(t *testing.T) config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw") //nolint:usetesting // short: the rendezvous is a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := config.Config{ShmDir: dir, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceSoft}}
	cfg.Limits.PeerShare = config.AllShare
	return cfg
}

func always(a ...netip.Addr) func() ([]netip.Addr, error) {
	return func() ([]netip.Addr, error) { return a, nil }
}

// TestSoftBesideAnAdapter: where an adapter takes RoCEv2's port in hardware, the
// device uses the alternate port, there only; a peer that knows nothing of it is
// carried with.
func TestSoftBesideAnAdapter(t *testing.T) {
	cfg := besideConfig(t)
	s := openSide(t, cfg, always(besideAddrs[0], besideAddrs[1]), func() (sysfs.RoCEPorts, error) { return hardware(besideAddrs[0]), nil })
	list := s.soft.Devices()
	require.Len(t, list, 2)
	require.EqualValues(t, 4791, list[0].UDPPort)
	require.Empty(t, list[0].Note)
	require.EqualValues(t, 4793, list[1].UDPPort)
	require.Regexp(t, `^receives on UDP port \d+: adapter mlx5_0/1 takes UDP port 4791$`, list[1].Note)
	require.Equal(t, report.DeviceActive, list[1].State)

	peer := openSide(t, cfg, always(besideAddrs[2]), nil)
	sides := [2]*side{peer, s}
	c := meet(t, sides, providers["soft"])
	require.EqualValues(t, 4793, c.to.RoCE.UDPPort)
	c.prove(t, sides)
	c.close(sides)
}

// TestSoftBesideSoftware: where the port is bound by another RDMA stack, all
// addresses are served on the alternate one.
func TestSoftBesideSoftware(t *testing.T) {
	takes(t, 4791)
	rxe := sysfs.RoCEPorts{besideAddrs[2]: {Name: "rxe0/1"}}
	cfg := besideConfig(t)
	s := openSide(t, cfg, always(besideAddrs[0], besideAddrs[1]), func() (sysfs.RoCEPorts, error) { return rxe, nil })
	list := s.soft.Devices()
	require.Len(t, list, 1)
	require.Contains(t, list[0].Note, "UDP port 4791 is in use by rxe0/1, an RDMA device in software")
	require.Len(t, list[0].GIDs, 2)
}

// takes has a port of the first address, as another program.
func takes(t *testing.T, port uint16) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(besideAddrs[0], port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestSoftWithoutAlternate: it is left out and says why, as a whole or on the
// addresses concerned.
func TestSoftWithoutAlternate(t *testing.T) {
	cfg := besideConfig(t)
	takes(t, 4793)
	roce := func() (sysfs.RoCEPorts, error) { return hardware(besideAddrs[0]), nil }
	s := openSide(t, cfg, always(besideAddrs[0]), roce)
	whole := s.soft.Devices()
	require.Len(t, whole, 1)
	require.Equal(t, report.DeviceFailed, whole[0].State)
	require.Contains(t, whole[0].Error, "adapter mlx5_0/1 takes UDP port 4791; the alternate port: ")
	require.Contains(t, whole[0].Error, "address already in use")

	s = openSide(t, cfg, always(besideAddrs[1], besideAddrs[0]), roce)
	list := s.soft.Devices()
	require.Len(t, list, 2)
	require.Equal(t, []report.DeviceState{report.DeviceActive, report.DeviceFailed}, []report.DeviceState{list[0].State, list[1].State})
	require.Contains(t, list[1].Error, "adapter mlx5_0/1 takes UDP port 4791; the alternate port: ")
	_, err := s.soft.PortOf(besideAddrs[0])
	require.ErrorIs(t, err, ErrNoDevice)
}

// TestSoftIsRetried: a device whose port was in use at the start opens when it is free.
func TestSoftIsRetried(t *testing.T) {
	taken := takes(t, 4791)
	takes(t, 4793)
	cfg := besideConfig(t)
	s := openSide(t, cfg, always(besideAddrs[0]), nil)
	state := func() report.DeviceInfo {
		list := s.soft.Devices()
		require.Len(t, list, 1)
		return list[0]
	}
	s.soft.retry()
	require.Equal(t, report.DeviceFailed, state().State)
	require.Contains(t, state().Error, "address already in use")
	_, err := s.soft.PortOf(besideAddrs[0])
	require.ErrorIs(t, err, ErrNoDevice)
	require.NoError(t, taken.Close())
	s.soft.retry()
	require.Equal(t, report.DeviceActive, state().State, state().Error)
	require.EqualValues(t, 4791, state().UDPPort)
	_, err = s.soft.PortOf(besideAddrs[0])
	require.NoError(t, err)
}

// TestSoftIsReclaimed: a port that a successor has not given up yet is waited for. Another
// program that keeps it is made way for.
func TestSoftIsReclaimed(t *testing.T) {
	cfg := besideConfig(t)
	cfg.Soft.UDPPort = twohosts.FreePort(t)
	s := openSide(t, cfg, always(besideAddrs[0]), nil)
	for _, lasts := range []bool{false, true} {
		require.NoError(t, s.soft.GiveUp())
		taken := takes(t, cfg.Soft.UDPPort)
		require.ErrorContains(t, s.soft.Reclaim(), "address already in use")
		_, err := s.soft.PortOf(besideAddrs[0])
		require.ErrorIs(t, err, ErrNoDevice)
		require.Equal(t, report.DeviceFailed, s.soft.Devices()[0].State)
		want := cfg.Soft.UDPPort
		if lasts {
			want = cfg.Soft.AlternatePort()
			s.soft.mu.Lock()
			s.soft.patient = time.Now()
			s.soft.mu.Unlock()
		} else {
			require.NoError(t, taken.Close())
		}
		s.soft.retry()
		at, err := s.soft.PortOf(besideAddrs[0])
		require.NoError(t, err)
		require.Equal(t, want, at.Unit.Port.UDPPort)
		if lasts {
			require.NoError(t, taken.Close())
		}
	}
}

// TestSoftFollowsAdapters: an adapter that comes after the device takes its packets;
// what begins from then on uses the alternate port.
func TestSoftFollowsAdapters(t *testing.T) {
	cfg := besideConfig(t)
	var there atomic.Bool
	s := openSide(t, cfg, always(besideAddrs[0], besideAddrs[1]), func() (sysfs.RoCEPorts, error) {
		if there.Load() {
			return hardware(besideAddrs[0]), nil
		}
		return nil, nil
	})
	port := func(a netip.Addr) uint16 {
		at, err := s.soft.PortOf(a)
		require.NoError(t, err)
		return at.Unit.Port.UDPPort
	}
	s.soft.followAdapters()
	require.EqualValues(t, 4791, port(besideAddrs[0]))
	there.Store(true)
	s.host.has("mlx5_0/1") // the kernel tells
	eventually(t, func() bool { return port(besideAddrs[0]) == 4793 }, "it has come")
	for range 2 { // once
		s.soft.followAdapters()
		require.EqualValues(t, 4793, port(besideAddrs[0]))
		require.EqualValues(t, 4791, port(besideAddrs[1]))
		require.Len(t, s.soft.Devices(), 2)
	}
	require.NoError(t, s.soft.GiveUp())
	s.soft.followAdapters()
	require.Empty(t, s.soft.units, "another gateway has the ports now")
	require.NoError(t, s.soft.Reclaim())
	require.EqualValues(t, 4793, port(besideAddrs[0]), "after a takeover that was taken back")
}
