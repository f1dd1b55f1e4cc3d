package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// betweenWorld is two hosts with a daemon each, whose programs are promoted with those of the other one.
type betweenWorld struct {
	*inProcessWorld
	gs [2]*gw // of h1 and h2
}

// betweenRule has the ends of streams promoted between hosts.
const betweenRule = "  - { name: rings, match: { ports: [7001] }, action: accelerate, way: in-process }\n"

func newBetweenWorld(t *testing.T, s settings) *betweenWorld {
	t.Helper()
	w := &betweenWorld{inProcessWorld: newProgramsWorld(t)}
	w.apart = true
	s.Policy += betweenRule
	w.gs = [2]*gw{w.up(w.h1, s), w.up(w.h2, s)}
	return w
}

// promoted waits until both ends are in rings, and bytes have moved there.
func (w *betweenWorld) promoted() (ends [2]report.ConnInfo) {
	w.t.Helper()
	for i, g := range w.gs {
		g.eventually("promoted", 10*time.Second, func() bool {
			list := g.inProcess()
			if len(list) == 1 {
				ends[i] = list[0]
			}
			return len(list) == 1 && list[0].InProcess.TxRing > 0 && list[0].InProcess.RxRing > 0
		})
	}
	return ends
}

// TestBetweenHosts: a stream between programs on two hosts goes by rings, which the soft device carries.
func TestBetweenHosts(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	const bytes = 32 << 20
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, bytes)
	for _, e := range w.promoted() {
		require.Equal(t, report.CarrierSoft, e.Carrier)
		require.Equal(t, "stream", e.Program.Name)
	}
	f.whole(bytes)
}
