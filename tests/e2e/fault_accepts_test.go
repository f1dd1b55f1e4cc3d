package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFaultAcceptsInStorm starts 200 clients at once on a busy machine. A listener that accepts once and closes must
// serve its client, and any other must see one accept() for each successful connect(), wherever that holds for native
// TCP, even if nearly every negotiation is too late. Each run draws its carrier.
func TestFaultAcceptsInStorm(t *testing.T) {
	runs, rounds := 1, 1
	if matrix.Whole() {
		runs, rounds = 20, 6
	}
	for _, via := range matrix.Cells(t, []report.Carrier{report.CarrierShm, report.CarrierSoft}, 1) {
		for _, deadline := range []string{quick, "20ms"} {
			t.Run(fmt.Sprintf("%s/%s", via, deadline), func(t *testing.T) {
				w := newWorld(t, testnet.Config{})
				w.via = via
				s := settings{
					Ports: "11000-19999", Handshake: deadline, NegativeCache: "10m", AtOnce: 32,
					Log: "{ level: info, format: text }",
				}
				control := filepath.Join(w.dir, "storm.sock")
				server, err := w.h2.StartApp("storm-serve", control, w.h2.Addr4.String())
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				_, err = server.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "listening" })
				require.NoError(t, err)
				g1, _ := w.upBoth(s)
				for range 2 {
					loop, err := w.h3.Start("sh", "-c", "while :; do :; done")
					require.NoError(t, err)
					defer func() { _ = loop.Kill() }()
				}
				for _, oneShot := range []bool{true, false} {
					w.storm(t, g1, storm{Control: control, To: w.h2.Addr4, OneShot: oneShot, Rounds: rounds, AtOnce: 200}, runs)
				}
				if deadline == quick {
					require.Positive(t, g1.status().FlowsTotal[via], "some were carried")
				}
				stats, err := w.net.BoxStats()
				require.NoError(t, err)
				require.Positive(t, stats.Offers, "not all began natively")
			})
		}
	}
}

// storm runs clients and reports what became of their connections.
func (w *world) storm(t *testing.T, client *gw, s storm, runs int) {
	kind := "counted accepts"
	if s.OneShot {
		kind = "one-shot listeners"
	}
	before, carried, native := client.status(), stormOutcome{}, stormOutcome{}
	for run := range runs {
		_, err := client.cli("peers", "flush") // each run begins with a peer that accepts offers
		require.NoError(t, err)
		flows := client.status().FlowsTotal[w.via]
		arg, err := json.Marshal(s)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		out, err := w.h1.AppCommand(ctx, "storm", string(arg)).Output()
		cancel()
		require.NoError(t, err, "%s", out)
		var result map[string]stormOutcome
		require.NoError(t, json.Unmarshal(out, &result), "%s", out)
		c, n := result["carried"], result["native"]
		t.Logf("%s, run %d, %d of %d carried: ratio=%.1f\n  gateway: %v\n  native:  %v",
			kind, run, client.status().FlowsTotal[w.via]-flows, c.Tries, ratio(c, n), c, n)
		if c.OK < c.Tries && n.OK == n.Tries {
			t.Errorf("%s, run %d: %d of %d connections failed, and native ones did not: %v", kind, run, c.Tries-c.OK, c.Tries, c.Failed)
		}
		if c.extra() > max(n.extra(), 0) {
			t.Errorf("%s, run %d: %d accept()s that belong to no connect(), natively %d", kind, run, c.extra(), n.extra())
		}
		carried.add(c)
		native.add(n)
	}
	after := client.status()
	fell := map[string]uint64{}
	for reason, n := range after.FallbacksTotal {
		if d := n - before.FallbacksTotal[reason]; d > 0 {
			fell[reason] = d
		}
	}
	t.Logf("%s, %d runs, flows=%d carried, relay %d, fallbacks %v: ratio=%.1f\n  gateway: %v\n  native:  %v", kind, runs,
		after.FlowsTotal[w.via]-before.FlowsTotal[w.via], after.FlowsTotal[report.CarrierRelay]-before.FlowsTotal[report.CarrierRelay], fell, ratio(carried, native), carried, native)
	if runs > 1 && ratio(carried, native) > 2 {
		t.Errorf("%s: connect() takes %.1f times as long", kind, ratio(carried, native))
	}
}

// ratio returns how many times as long connect() takes through the gateway as natively, for the slowest of a hundred
// in the usual round.
func ratio(carried, native stormOutcome) float64 {
	return float64(carried.usual()) / float64(max(native.usual(), time.Microsecond))
}
