package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
)

// pastConn is a connection of a service that has done something.
type pastConn struct {
	bytes, moves uint64
	start        time.Time
	seen         auto.Seen
}

func (*pastConn) Service() netip.AddrPort        { return netip.MustParseAddrPort("10.0.0.2:80") }
func (c *pastConn) Start() time.Time             { return c.start }
func (c *pastConn) Moved() (bytes, moves uint64) { return c.bytes, c.moves }
func (c *pastConn) Seen() *auto.Seen             { return &c.seen }

// TestAutoBook: connections of rules with action auto are learned from, and what is
// learned reaches the steering, status and metrics.
func TestAutoBook(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	require.False(t, g.learnsFrom(0))
	g.learn(g.all(), time.Now())
	require.Empty(t, g.Services())
	g.cfg.Policy = []config.Rule{{Name: "a", Action: config.ActionAuto}, {Name: "b", Action: config.ActionAccelerate}}
	g.live.Store(&liveConfig{Config: g.cfg})
	g.env.Auto = newAutoBook(g)
	require.True(t, g.learnsFrom(0))
	require.False(t, g.learnsFrom(1))
	require.False(t, g.learnsFrom(ebpf.NoRule))
	require.False(t, g.learnsFrom(7))

	bareFlow(t, g, config.SideClient, 2000) // is not carried, and tells nothing
	now := time.Now()
	for range 2 {
		g.env.Auto.Look(&pastConn{bytes: 920, moves: 300, start: now}, config.CarrierShm, true, now.Add(time.Second))
		g.learn(g.all(), now.Add(time.Second))
	}
	list := g.Services()
	require.Len(t, list, 1)
	require.Equal(t, admin.VerdictNative, list[0].Verdict)
	require.Equal(t, "not_worth_it", list[0].Reason)
	require.Positive(t, list[0].ExpiresSeconds)
	require.EqualValues(t, 1840, list[0].Bytes)
	sent, err := steer.Services()
	require.NoError(t, err)
	require.Len(t, sent, 1)
	require.Equal(t, ebpf.ServiceNative, sent[0].State)
	require.Equal(t, map[admin.ServiceVerdict]int{admin.VerdictNative: 1}, g.Snapshot().Services)

	_, err = g.FlushPeers()
	require.NoError(t, err)
	require.Empty(t, g.Services())
	sent, err = steer.Services()
	require.NoError(t, err)
	require.Empty(t, sent)
	g.env.Auto = nil
	require.NoError(t, g.env.Auto.Flush())
}
