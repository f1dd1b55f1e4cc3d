package rulewatch

import (
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

// A rule that is added is told, and quit ends everything.
func TestWatch(t *testing.T) {
	if os.Geteuid() != 0 {
		require.False(t, slices.Contains(strings.Split(os.Getenv("SMCGW_REQUIRE"), ","), "root"), "SMCGW_REQUIRE asks for root")
		t.Skip("SKIPPED: a network namespace needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with its namespace
		ns, err := netns.New()
		require.NoError(t, err)
		defer func() { _ = ns.Close() }()
		quit := make(chan struct{})
		changed, err := Start(quit)
		require.NoError(t, err)
		rule := netlink.NewRule()
		rule.Priority, rule.Table = 7, 7
		require.NoError(t, netlink.RuleAdd(rule))
		select {
		case <-changed:
		case <-time.After(30 * time.Second):
			t.Error("a rule is a change")
		}
		close(quit)
		for range changed {
		}
	}()
	<-done
}
