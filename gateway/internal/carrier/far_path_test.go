package carrier

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestPathMTU: a path is as wide as the device, the route and the last failed
// proof say.
func TestPathMTU(t *testing.T) {
	here, now := netip.MustParseAddr("127.0.0.1"), time.Now()
	var p pathMTU
	require.Equal(t, verbs.MTU2048, p.mtu(verbs.MTU2048, here, now), "the device")
	p.kernel.Store(uint32(verbs.MTU512))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked/2)), "the kernel, as of a moment ago")
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked)), "as of now")
	p.kernel.Store(uint32(verbs.MTU512))
	p.failed()
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked)), "asked again after a failure")
	p.unproved(now)
	require.Equal(t, verbs.MTU1024, p.mtu(verbs.MTU4096, here, now.Add(mtuNarrow-1)))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU512, here, now))
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuNarrow)), "it may have been repaired")
}
