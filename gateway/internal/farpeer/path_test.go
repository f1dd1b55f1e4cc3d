package farpeer

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestRoCEPath: a path is as wide as the device, the route and the last failed
// proof say.
func TestRoCEPath(t *testing.T) {
	here, now := netip.MustParseAddr("127.0.0.1"), time.Now()
	var p path
	require.Equal(t, verbs.MTU2048, p.mtu(verbs.MTU2048, here, now), "the device")
	p.kernel.Store(uint32(verbs.MTU512))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU4096, here, now.Add(pathAsked/2)), "the kernel, as of a moment ago")
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(pathAsked)), "as of now")
	p.unproved(now)
	require.Equal(t, verbs.MTU1024, p.mtu(verbs.MTU4096, here, now.Add(pathNarrow-1)))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU512, here, now))
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(pathNarrow)), "it may have been repaired")
}
