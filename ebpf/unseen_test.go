package ebpf

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The link types of if_arp.h whose devices the programs do not read, and one that they do.
const (
	typeNone   = 65534
	typeRawIP  = 519
	typeIP6GRE = 823
)

// tunOf makes a TUN of a link type, up and with an address of 10.99.0.0/24.
func (h *host) tunOf(name string, kind int) *os.File {
	h.t.Helper()
	var f *os.File
	h.do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		require.NoError(h.t, err)
		req, err := unix.NewIfreq(name)
		require.NoError(h.t, err)
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		require.NoError(h.t, unix.IoctlIfreq(fd, unix.TUNSETIFF, req))
		require.NoError(h.t, unix.IoctlSetInt(fd, unix.TUNSETLINK, kind))
		f = os.NewFile(uintptr(fd), name) // from now on it can be polled
		l, err := netlink.LinkByName(name)
		require.NoError(h.t, err)
		addr, err := netlink.ParseAddr("10.99.0.1/24")
		require.NoError(h.t, err)
		require.NoError(h.t, netlink.AddrAdd(l, addr))
		require.NoError(h.t, netlink.LinkSetUp(l))
	})
	h.t.Cleanup(func() { _ = f.Close() })
	return f
}

// A SYN leaves with an offer where an entry has that, and by a device that no program reads
// it leaves as the kernel made it.
func TestUnseenDevices(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for name, c := range map[string]struct {
		kind   int
		unseen bool
	}{"tun": {typeNone, false}, "rawip": {typeRawIP, true}, "ip6gre": {typeIP6GRE, true}} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			tun := h.tunOf("odd0", c.kind)
			cfg := config(accelerate(6379))
			cfg.Devices = []string{"odd0"}
			d := h.open(cfg)
			to := addrPort("10.99.0.2:6379")
			local, err := h.begin(unix.AF_INET, to)
			require.NoError(t, err)
			syn, buf := segment{}, make([]byte, 2048)
			require.NoError(t, tun.SetReadDeadline(time.Now().Add(patience)))
			for syn.flags&flagSYN == 0 { // IPv6 speaks, too
				n, err := tun.Read(buf)
				require.NoError(t, err)
				syn, _ = readSegment(buf[:n])
			}
			require.Equal(t, to, syn.dst)
			_, _, offers := syn.offer()
			_, err = d.Flow(Tuple{Local: local, Remote: to})
			require.Equal(t, offers, err == nil, "an offer without an entry")
			want := uint64(0)
			if c.unseen {
				want = 1
				require.False(t, offers)
			}
			require.Equal(t, want, nativeCount(t, d, SideClient, ReasonAddress))
		})
	}
}
