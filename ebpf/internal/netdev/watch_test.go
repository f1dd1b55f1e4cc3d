package netdev

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/smcgw/smcgw/lab/testnet"
)

// told waits for a message.
func told(t *testing.T, changed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
		t.Error(what + " is a change")
	}
}

// A rule that is added is told, and quit ends everything.
func TestWatch(t *testing.T) {
	testnet.InNamespace(t, func() {
		quit := make(chan struct{})
		changed, err := Watch(quit)
		require.NoError(t, err)
		rule := netlink.NewRule()
		rule.Priority, rule.Table = 7, 7
		require.NoError(t, netlink.RuleAdd(rule))
		told(t, changed, "a rule")
		close(quit)
		for range changed {
		}
	})
}

// Changes of devices are told also after more at once than the socket has room to tell of,
// as when many containers start.
func TestWatchAfterLoss(t *testing.T) {
	testnet.InNamespace(t, func() {
		quit := make(chan struct{})
		changed, err := Watch(quit)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0"}, PeerName: "w1"}))
		told(t, changed, "a device")
		l, err := netlink.LinkByName("w0")
		require.NoError(t, err)
		for range 400 {
			require.NoError(t, netlink.LinkSetAllmulticastOn(l))
			require.NoError(t, netlink.LinkSetAllmulticastOff(l))
		}
		for quiet := false; !quiet; {
			select {
			case <-changed:
			case <-time.After(300 * time.Millisecond):
				quiet = true
			}
		}
		require.NoError(t, netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 7, 7}))
		told(t, changed, "a link address")
		close(quit)
		for range changed {
		}
	})
}
