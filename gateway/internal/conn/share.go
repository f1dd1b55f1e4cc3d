package conn

import (
	"net/netip"

	"github.com/smcgw/smcgw/gateway/config"
)

// Peer is whose share the connection counts for.
func (f *Flow) Peer() netip.Addr { return f.Tuple.Remote.Addr().Unmap() }

// beginShare counts a connection that its peer has begun, once.
func (f *Flow) beginShare() {
	if f.Side == config.SideServer {
		f.share.Begin(f.env.Peers, f.Peer(), f.start)
	}
}

// EndShare ends that, once or more.
func (f *Flow) EndShare() { f.share.End(f.env.Peers, f.Peer()) }
