package datagram

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestFlowEndsWithItsDatagram: a flow that ends because its datagram cannot be posted has ended, once.
func TestFlowEndsWithItsDatagram(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		there := h.ends(0, 4000, 53)
		h.pass(0, there, []byte("one"))
		e := h.engine(0)
		e.s.Call(func() { assert.NoError(t, e.peers[pairAddrs[1]].cur.port.qp.Close()) }) // posting fails from here on
		h.d[0].steer(t, there, []byte("two"))
		require.Eventually(t, func() bool { return len(h.g[0].ended()) > 0 }, patience, time.Millisecond)
		e.s.Call(func() {
			p := e.peers[pairAddrs[1]]
			assert.Zero(t, p.flows.n)
			assert.Nil(t, p.flows.head)
			assert.Zero(t, e.flows.len())
			for _, n := range e.flows.count {
				assert.Zero(t, n.Now)
			}
		})
		require.Len(t, h.g[0].ended(), 1)
	})
}
