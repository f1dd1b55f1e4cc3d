package bench

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

const softPathConfig = `schema: smcgw/v1
mode: enforce
admin: %[1]s/%[2]s.sock
devices: [cable1]
policy: [{ name: bench, match: { ports: [7001] }, action: accelerate }]
carriers: [soft]
state_dir: %[1]s/%[2]s.state
limits: { handshake_timeout: 1s }
`

// softPath is two hosts at a cable, with gateways that have only the soft device,
// and a server of iperf3 on the second.
type softPath struct {
	pair
	server netip.AddrPort
}

func newSoftPath(b *testing.B, mtu int) *softPath {
	testnet.Require(b, "root", "bpf")
	n := testnet.Start(b, testnet.Config{Hosts: []string{"h1", "h2"}})
	p := &softPath{pair: pair{h1: n.Host("h1"), h2: n.Host("h2")}}
	_, at, err := n.Cable(p.h1, p.h2, mtu)
	require.NoError(b, err)
	p.server = netip.AddrPortFrom(at, port)
	p.start(b, n, softPathConfig)
	_, err = p.h2.IPerf3Server(port)
	require.NoError(b, err)
	return p
}

// stream is a round of iperf3 with a congestion control of the programs.
func (p *softPath) stream(b *testing.B, cc string, args ...string) (gbits, cost float64) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	before := cpuTime(b)
	r, err := p.h1.IPerf3(ctx, p.server, append([]string{"-t", "1.5", "-C", cc}, args...)...)
	require.NoError(b, err)
	return r.BitsPerSecond / 1e9, (cpuTime(b) - before) / (float64(r.ReceivedBytes) / 1e9)
}

// BenchmarkSoftPath is one stream of programs through two gateways, beside the
// same programs over the kernel's TCP, up and down, by the congestion control of
// the programs.
func BenchmarkSoftPath(b *testing.B) {
	for _, mtu := range linkMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			p := newSoftPath(b, mtu)
			for _, cc := range []string{"cubic", "bbr"} {
				b.Run(cc+"-up", func(b *testing.B) { p.contest(b, cc) })
				b.Run(cc+"-down", func(b *testing.B) { p.contest(b, cc, "-R") })
			}
		})
	}
}

// contest has both ways in turns.
func (p *softPath) contest(b *testing.B, cc string, args ...string) {
	var c contest
	for b.Loop() {
		for _, way := range []struct {
			name string
			off  bool
		}{{"tcp", true}, {"soft", false}} {
			var cost float64
			before := p.counters(b)
			value := p.round(b, way.off, func() (v float64) {
				v, cost = p.stream(b, cc, args...)
				return v
			})
			c.enter(way.name, value, cost)
			if after := p.counters(b); !way.off {
				b.Logf("%.1f datagrams per call sent, %d sent again", float64(after["tx_packets"]-before["tx_packets"])/
					float64(after["tx_calls"]-before["tx_calls"]), after["retransmits"]-before["retransmits"])
			}
		}
	}
	c.report(b, "Gbit/s", "tcp")
}

// counters are those of the soft device of the first host.
func (p *softPath) counters(b *testing.B) map[string]uint64 {
	list, err := p.admin.Devices(b.Context())
	require.NoError(b, err)
	require.Len(b, list.Devices, 1)
	return list.Devices[0].Counters
}
