package rulewatch

import (
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNamespace runs fn on a thread that ends with its network namespace.
func inNamespace(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		require.False(t, slices.Contains(strings.Split(os.Getenv("SMCGW_REQUIRE"), ","), "root"), "SMCGW_REQUIRE asks for root")
		t.Skip("SKIPPED: a network namespace needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		ns, err := netns.New()
		require.NoError(t, err)
		defer func() { _ = ns.Close() }()
		fn()
	}()
	<-done
}

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
	inNamespace(t, func() {
		quit := make(chan struct{})
		changed, err := Start(quit)
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
	inNamespace(t, func() {
		quit := make(chan struct{})
		changed, err := Start(quit)
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
