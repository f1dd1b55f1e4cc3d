package conn

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
)

// TestDialReasons: what the application or the host's rules answer is remembered about the service; a tuple that a socket of the gateway
// has is not.
func TestDialReasons(t *testing.T) {
	for errno, want := range map[unix.Errno]struct {
		reason negotiate.Reason
		scope  negotiate.Scope
	}{
		unix.ECONNREFUSED:  {negotiate.ReasonAppRefused, negotiate.ScopeService},
		unix.ETIMEDOUT:     {negotiate.ReasonAppUnreachable, negotiate.ScopeService},
		unix.EHOSTUNREACH:  {negotiate.ReasonAppUnreachable, negotiate.ScopeService},
		unix.EMFILE:        {negotiate.ReasonFlowLimit, negotiate.ScopeService},
		unix.EADDRINUSE:    {negotiate.ReasonAppLegBlocked, negotiate.ScopeNone},
		unix.EADDRNOTAVAIL: {negotiate.ReasonAppLegBlocked, negotiate.ScopeNone},
	} {
		r := dialReason(fmt.Errorf("dial the application: %w", errno))
		require.Equal(t, want.reason, r, errno)
		require.Equal(t, want.scope, negotiate.CachePolicy{}.ScopeOf(r), errno)
	}
}
