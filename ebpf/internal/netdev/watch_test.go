package netdev

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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

func TestWhole(t *testing.T) {
	other := errors.New("other")
	for _, test := range []struct {
		name  string
		errs  []error // of the first questions
		want  error
		asked int
	}{
		{"at once", nil, nil, 1},
		{"links came and went", []error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, nil, 3},
		{"programs came", []error{fmt.Errorf("query programs: %w", unix.ENOSPC)}, nil, 2},
		{"another error", []error{unix.ENOSPC, other}, other, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked := 0
			list, err := Whole(func() (int, error) {
				asked++
				if asked <= len(test.errs) {
					return 0, test.errs[asked-1]
				}
				return asked, nil
			})
			require.ErrorIs(t, err, test.want)
			require.Equal(t, test.asked, asked)
			if test.want == nil {
				require.Equal(t, asked, list)
			}
		})
	}
}

// A list that never settles is an error in the end.
func TestWholeGivesUp(t *testing.T) {
	asked := 0
	_, err := Whole(func() (int, error) { asked++; return 0, netlink.ErrDumpInterrupted })
	require.ErrorIs(t, err, netlink.ErrDumpInterrupted)
	require.Equal(t, tries, asked)
}
