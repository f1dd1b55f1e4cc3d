package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// soon is more than a round trip and two ticks of a kernel on any machine, and less than the second after which the
// kernel retransmits a lost SYN.
const soon = 800 * time.Millisecond

// TestFallbackBoxRejects puts a box on the path that answers SYNs with the option by a reset or an ICMP error.
// Applications must not notice: the first connection costs one more round trip, the next ones none, and connections
// are carried again once the box is gone.
func TestFallbackBoxRejects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	inner, err := w.net.Behind(w.h2, "inner")
	require.NoError(t, err)
	w.serve(inner)
	g1, g2 := w.up(w.h1, settings{}), w.up(inner, settings{})
	for name, with := range map[string]string{
		"reset":      "tcp reset",
		"prohibited": "icmpx type admin-prohibited",
		"port":       "icmpx type port-unreachable",
		"host":       "icmpx type host-unreachable",
	} {
		t.Run(name, func(t *testing.T) {
			w.flush()
			require.NoError(t, w.h2.NFT("table inet box {\nchain forward { type filter hook forward priority 0;\n"+
				"tcp flags syn tcp option 254 exists reject with "+with+"\n}\n}"))
			t.Cleanup(func() { require.NoError(t, w.h2.FlushNFT()) })
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				to := addr(inner, echoPort)
				f := fallback{w: w, t: t, from: w.h1, to: to, client: remote("option_rejected")}
				require.True(t, w.inTime(func() bool { return f.rejected(g1) }))
			})
			require.NoError(t, w.h2.FlushNFT())
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				e := w.carriedSoon(t, addr(inner, echoPort), 30*time.Second) // the destination is left alone for seconds only
				require.Equal(t, w.via, g2.closedConn(at(e)).Carrier)
			})
		})
	}
}

// leftAlone is how long a destination that has rejected an offer gets no more of them.
const leftAlone = 5 * time.Second

// rejected makes three connections through such a box, and looks at what is remembered. All that proves nothing, and it
// returns false, if a gateway was late or had to wait for a processor, or if it took until the rejection was forgotten.
func (f fallback) rejected(g1 *gw) bool {
	f.t.Helper()
	f.until = time.Now().Add(leftAlone)
	for i := range 3 {
		before, waited := f.w.totals(), f.w.waitedForCPU()
		e := f.connect()
		took := time.Duration(max(e.ConnectMicros, e.Micros)) * time.Microsecond
		busy := took >= soon && f.w.waitedForCPU()-waited > stale
		if f.foundLate(e) || busy || f.forgotten() {
			return false
		}
		require.Less(f.t, took, soon, "%+v", e)
		require.Equal(f.t, map[bool]int{true: 1}[i == 0], e.Repeated, "only the first is asked again")
		f.check(e, before)
	}
	p, ok := g1.peer(hostOf(f.to), 0)
	if !ok && f.forgotten() {
		return false
	}
	require.True(f.t, ok)
	require.Equal(f.t, "option_rejected", p.Reason)
	require.Equal(f.t, report.PeerIncapable, p.State)
	require.LessOrEqual(f.t, p.ExpiresSeconds, leftAlone.Seconds())
	return true
}
