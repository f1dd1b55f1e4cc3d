package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

const (
	keyOne = "the first key of the test"
	keyTwo = "the second key of the test"
)

// keys writes the key file of a host's gateway and returns the setting for it, which is empty without keys.
func (w *world) keys(h *testnet.Host, lines ...string) string {
	w.t.Helper()
	if len(lines) == 0 {
		return ""
	}
	path := filepath.Join(w.dir, h.Name+".psk")
	require.NoError(w.t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	return fmt.Sprintf("security: { psk_file: %s }\n", path)
}

// keyCell is the keys of two gateways.
type keyCell struct {
	name           string
	client, server []string
	carried        bool
	// back: what the server's side begins by itself is believed or refused likewise. Datagrams have no client: each
	// side asks the other.
	back bool
}

var keyCells = []keyCell{
	{"the same", []string{keyOne}, []string{keyOne}, true, true},
	{"being changed", []string{keyTwo, keyOne}, []string{keyOne, keyTwo}, true, true},
	{"new one added", []string{keyOne}, []string{keyTwo, keyOne}, true, false},
	{"different", []string{keyOne}, []string{keyTwo}, false, true},
	{"client without", nil, []string{keyTwo}, false, true},
	{"server without", []string{keyOne}, nil, false, true},
	{"second only", []string{keyOne, keyTwo}, []string{keyTwo}, false, false},
}

// TestFaultKeys checks that gateways carry for each other if they have a key in common. Otherwise every connection
// must be native, both must know why, and no application may notice.
func TestFaultKeys(t *testing.T) {
	t.Parallel()
	n := newTally(t)
	for _, c := range matrix.Cells(t, keyCells, 4) {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) { keyed(t, n, c) })
	}
	require.Zero(t, n.failed())
}

func keyed(t *testing.T, n *tally, c keyCell) {
	w := newServed(t)
	w.up(w.h1, settings{Extra: w.keys(w.h1, c.client...)})
	w.up(w.h2, settings{Extra: w.keys(w.h2, c.server...)})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		if c.carried {
			e := w.mustApp(w.h1, "ping", "-count", "100", "-size", "5000", "-to", to)
			n.result(e)
			w.carriedBy(e, w.via)
			return
		}
		n.faults(1)
		first := fallback{w: w, t: t, from: w.h1, to: to, client: remote("auth_failed"), server: local("auth_failed")}
		n.result(first.ping())
		n.result(fallback{w: w, t: t, from: w.h1, to: to, client: local("auth_failed")}.ping()) // remembered
		p, ok := w.gateways[w.h1].peer(hostOf(to), echoPort)
		require.True(t, ok)
		require.Equal(t, "auth_failed", p.Reason)
	})
	e := w.mustApp(w.h1, "churn", "-count", "100", "-parallel", "8", "-to", w.h2.AddrPort4(transferPort).String())
	n.result(e)
	for _, g := range w.gateways {
		require.NotContains(t, g.proc.Output(), "key of the test", "a key in the log")
		const refused = "no key in common"
		if c.carried {
			require.NotContains(t, g.proc.Output(), refused, "%s: the log", g.h.Name)
		} else {
			require.NoError(t, g.proc.WaitOutput(patience(t), refused), "%s: the log", g.h.Name)
		}
	}
}

// reload makes a gateway read its configuration again and waits for a text in its log.
func (g *gw) reload(says string) {
	g.w.t.Helper()
	before := strings.Count(g.proc.Output(), says)
	g.signal(g.proc.Pid(), syscall.SIGHUP)
	require.Eventually(g.w.t, func() bool { return strings.Count(g.proc.Output(), says) > before },
		30*time.Second, 10*time.Millisecond, says)
}

// TestFaultKeysChanged changes the keys of two gateways under load, first on one, then on the other, without an error
// and without a connection that is native because of it. An unusable file must change nothing; a wrong key must make
// new connections native, and the right one must carry them again at once.
func TestFaultKeysChanged(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	const good, bad = "configuration in force", "configuration refused"
	w.up(w.h1, settings{Extra: w.keys(w.h1, keyOne)})
	w.up(w.h2, settings{Extra: w.keys(w.h2, keyOne)})
	n := newTally(t)
	rng := matrix.Rand(t)
	order := []*testnet.Host{w.h1, w.h2}
	if rng.IntN(2) == 1 {
		order[0], order[1] = order[1], order[0]
	}
	bulk, err := w.h1.StartApp("transfer", "-up", "300000000", "-down", "300000000", "-to", w.h2.AddrPort4(transferPort).String())
	require.NoError(t, err)
	churn, err := w.h1.StartApp("churn", "-count", "800", "-parallel", "4", "-gap", "2ms", "-to", w.h2.AddrPort6(transferPort).String())
	require.NoError(t, err)
	for _, keys := range [][]string{{keyOne, keyTwo}, {keyTwo, keyOne}, {keyTwo}} {
		for _, h := range order {
			w.keys(h, keys...)
			w.gateways[h].reload(good)
			n.faults(1)
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			w.keys(h, "too short")
			w.gateways[h].reload(bad)
			w.keys(h, keys...)
		}
	}
	for _, p := range []*testnet.Proc{bulk, churn} {
		n.result(result(t, p))
	}
	for h, g := range w.gateways {
		require.Zero(t, g.status().FallbacksTotal["auth_failed"], h.Name)
	}
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		carried := func() {
			e := w.mustApp(w.h1, "ping", "-count", "3", "-to", to)
			n.result(e)
			w.carriedBy(e, w.via)
		}
		carried()
		w.keys(w.h1, keyOne)
		w.gateways[w.h1].reload(good)
		n.faults(1)
		native := fallback{w: w, t: t, from: w.h1, to: to, client: remote("auth_failed"), server: local("auth_failed")}
		n.result(native.ping())
		w.keys(w.h1, keyTwo)
		w.gateways[w.h1].reload(good)
		carried()
	})
	require.Zero(t, n.failed())
}

// TestFaultKeysDatagrams checks that a gateway without a common key gets no queue pair for datagrams either: they go
// natively, none is lost, and both gateways know why.
func TestFaultKeysDatagrams(t *testing.T) {
	t.Parallel()
	n := newTally(t)
	cells := slices.DeleteFunc(slices.Clone(keyCells), func(c keyCell) bool { return !c.back })
	for _, c := range matrix.Cells(t, cells, 2) {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			d := newDatagramWorld(t)
			d.server = d.serveNumbered(d.h2)
			s := datagramSettings()
			s.Extra = d.keys(d.h1, c.client...)
			d.g1 = d.up(d.h1, s)
			s.Extra = d.keys(d.h2, c.server...)
			d.g2 = d.up(d.h2, s)
			for _, to := range []string{d.h2.AddrPort4(echoUDP).String(), d.h2.AddrPort6(echoUDP).String()} {
				if c.carried {
					d.prove(t, netip.MustParseAddrPort(to))
					n.result(d.ping(t, d.h1, to, "-count", "200"))
					continue
				}
				n.faults(1)
				why := func(i report.ConnInfo) bool {
					return i.Proto == "udp" && i.Remote.String() == to && i.Reason == "auth_failed"
				}
				require.Eventually(t, func() bool { // the first ones make the gateway ask the peer
					n.result(d.ping(t, d.h1, to, "-count", "20"))
					return len(d.g1.everything(why)) > 0
				}, 30*time.Second, 50*time.Millisecond, "no datagram is native for the key")
			}
			if !c.carried {
				sent := d.g1.udpStats().Sent[d.via]
				require.Zero(t, sent, "carried without a key")
				require.Zero(t, d.g2.udpStats().Received[d.via])
			}
		})
	}
	require.Zero(t, n.failed())
}
