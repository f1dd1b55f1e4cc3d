package conn

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestDeclineOfOneCarrier: a server that declines what was offered alone, since it had been
// proved, may be full there or have lost its device. The next connection is offered all, and
// what declines that is remembered of the service. Reasons of another kind change nothing.
func TestDeclineOfOneCarrier(t *testing.T) {
	of := map[negotiate.Reason]bool{negotiate.ReasonAppRefused: false}
	for _, r := range negotiate.Reasons() {
		if r.OfCarriers() {
			of[r] = true
		}
	}
	require.Contains(t, of, negotiate.ReasonFlowLimit)
	require.Contains(t, of, negotiate.ReasonNoMemory)
	for reason, ofCarriers := range of {
		t.Run(reason.String(), func(t *testing.T) {
			p := newPair(t)
			g := p.g[0]
			shm, soft := g.providerOf(negotiate.CarrierSHM), g.providerOf(negotiate.CarrierSoft)
			g.Providers = []carrier.Provider{soft, shm}
			t.Cleanup(func() { g.Providers = []carrier.Provider{shm, soft} })
			// connect offers a connection what there is, and has the server decline that.
			connect := func(also func(*carry)) (offered int, remembered bool) {
				p.port++
				f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
				defer g.unlink(f)
				carries, _ := f.makeOffers(&negotiate.Proposal{})
				require.NotEmpty(t, carries)
				v := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: reason, Remote: true}
				f.call(func() {
					f.carries = carries
					(&client{negotiator: negotiator{f: f}}).declined(v)
					also(carries[0])
					f.remember(v)
					f.carries = nil
					closeAll(carries)
				})
				list, err := p.steer[0].Peers()
				require.NoError(t, err)
				for _, peer := range list {
					require.NoError(t, p.steer[0].Forget(peer.Addr, peer.Port))
				}
				g.Peers.Flush()
				return len(carries), len(list) > 0
			}
			nothing := func(*carry) {}
			check := func(what string, offers int, remembers bool, also func(*carry)) {
				t.Helper()
				offered, remembered := connect(also)
				require.Equal(t, offers, offered, what)
				require.Equal(t, remembers, remembered, what)
			}
			check("of no carrier it is known that it works", 2, true, func(c *carry) { c.Proved() })
			check("soft works", 1, !ofCarriers, nothing)
			if ofCarriers {
				check("soft has been declined", 2, true, nothing)
			} else {
				check("soft works still", 1, true, nothing)
			}
		})
	}
}

// TestNothingProposedByAGatewayThatEnds: what it would have to wait for is not begun. The
// application goes on natively, and the server's program is not dialled.
func TestNothingProposedByAGatewayThatEnds(t *testing.T) {
	for _, ends := range []bool{false, true} {
		p := newPair(t)
		p.port++
		f := p.g[0].open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
		t.Cleanup(func() { p.g[0].unlink(f) })
		var offer negotiate.Proposal
		carries, _ := f.makeOffers(&offer)
		t.Cleanup(func() { f.call(func() { closeAll(carries) }) })
		if ends {
			p.g[0].drained.Do(func() { close(p.g[0].draining) })
		}
		client := negotiate.NewClient(negotiate.ClientConfig{}, offer)
		server := negotiate.NewServer(negotiate.ServerConfig{}, 0)
		require.Empty(t, server.Start(time.Now(), 0, negotiate.ConfirmedYes))
		served := false
		for _, a := range f.firstWord(client, negotiate.ReasonNone) {
			if said, ok := a.(negotiate.Send); ok {
				for _, a := range server.Receive(time.Now(), said.Bytes) {
					_, serves := a.(negotiate.Serve)
					served = served || serves
				}
			}
		}
		require.Equal(t, !ends, served)
		v, decided := client.Verdict()
		require.Equal(t, ends, decided)
		if ends {
			require.Equal(t, negotiate.OutcomeReleased, v.Outcome)
			require.Equal(t, negotiate.ReasonDrained, v.Reason)
		}
	}
}
