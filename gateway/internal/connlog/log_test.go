package connlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
)

// written is a log whose lines the test reads.
type written struct {
	*Log
	out *lockedBuffer
}

// lockedBuffer is written by timers and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWritten(access config.AccessLog) written {
	w := written{out: &lockedBuffer{}}
	w.Log = New(slog.New(slog.NewJSONHandler(w.out, nil)), config.Log{Access: access})
	return w
}

// lines returns what was written, without the times.
func (w written) lines(t *testing.T) (list []map[string]any) {
	for line := range strings.Lines(w.out.String()) {
		var doc map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &doc))
		delete(doc, "time")
		list = append(list, doc)
	}
	return list
}

func carried(id uint64) report.ConnInfo {
	return report.ConnInfo{
		ID: id, Proto: "tcp", Side: report.SideServer, Local: netip.MustParseAddrPort("10.0.0.2:6379"), Remote: netip.MustParseAddrPort("10.0.0.1:40000"),
		State: "carrying", Carrier: report.CarrierShm, AgeSeconds: 0.0015,
	}
}

func ended(id uint64) report.ConnInfo {
	c := carried(id)
	c.State, c.End, c.TxBytes, c.RxBytes, c.AgeSeconds = "closed", report.EndClosed, 10, 20, 61
	return c
}

func native() report.ConnInfo {
	return report.ConnInfo{
		ID: 9, Proto: "tcp", Side: report.SideClient, Local: netip.MustParseAddrPort("10.0.0.2:50000"), Remote: netip.MustParseAddrPort("10.0.0.3:80"),
		Reason: "peer_no_option", DecidedBy: report.DecidedRemote, End: report.EndNative,
	}
}

func TestAccessLog(t *testing.T) {
	opened := map[string]any{
		"level": "INFO", "msg": "connection opened", "flow_id": 7.0, "proto": "tcp", "side": "server",
		"src": "10.0.0.1:40000", "dst": "10.0.0.2:6379", "carrier": "rdma-shm", "setup": 1.5e6,
	}
	complete := map[string]any{
		"level": "INFO", "msg": "connection complete", "flow_id": 7.0, "proto": "tcp", "side": "server",
		"src": "10.0.0.1:40000", "dst": "10.0.0.2:6379", "carrier": "rdma-shm", "tx_bytes": 10.0, "rx_bytes": 20.0, "duration": 61e9,
		"end": "closed", "reason": "", "decided_by": "", "demoted": "",
	}
	left := map[string]any{
		"level": "INFO", "msg": "connection native", "flow_id": 9.0, "proto": "tcp", "side": "client",
		"src": "10.0.0.2:50000", "dst": "10.0.0.3:80", "reason": "peer_no_option", "decided_by": "remote",
	}
	for access, want := range map[config.AccessLog][]map[string]any{
		config.AccessOff: nil, config.AccessCarried: {opened, complete}, config.AccessAll: {opened, complete, left, left},
	} {
		w := newWritten(access)
		w.Carried(func() report.ConnInfo { return carried(7) })
		w.Ended(ended(7))
		w.Native(native())
		w.Ended(native()) // that fell back
		w.Flush()
		require.Equal(t, want, w.lines(t), access)
	}
}

// What is above the limit is counted, and told once a second however long it lasts.
func TestAccessLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(config.AccessCarried)
		const seconds, each = 4, 1000 // connections in a second
		for id := range uint64(seconds * each) {
			w.Ended(ended(id))
			time.Sleep(time.Second / each)
		}
		w.Flush()
		told, warnings := 0.0, 0
		for _, line := range w.lines(t) {
			if line["level"] == "WARN" {
				require.Equal(t, "lines of the access log left out: too many in a second", line["msg"])
				told, warnings = told+line["count"].(float64), warnings+1
			}
		}
		require.InDelta(t, seconds, warnings, 1)
		require.EqualValues(t, w.LeftOut(), told, "each once")
		require.EqualValues(t, seconds*each, w.LeftOut()+uint64(len(w.lines(t))-warnings), "no line is lost")
		before := len(w.lines(t))
		w.Configure(config.Log{Access: config.AccessOff})
		w.Ended(ended(12))
		w.Flush()
		require.Len(t, w.lines(t), before)
	})
}

// Without an access log nothing is asked of a connection.
func TestAccessLogOffAsksNothing(t *testing.T) {
	w := newWritten(config.AccessOff)
	w.Carried(func() report.ConnInfo { panic("asked") })
	info := ended(1)
	require.Zero(t, testing.AllocsPerRun(100, func() { w.Ended(info) }))
}

// Resets of one reason within a second have one line; those by an application have none.
func TestResetsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(config.AccessOff)
		reset := func(reason string) report.ConnInfo {
			c := ended(3)
			c.End, c.Reason, c.DecidedBy = report.EndAborted, reason, report.DecidedRemote
			return c
		}
		for range 5 {
			w.Ended(reset("peer_dead"))
			w.Ended(reset("app_reset"))
		}
		w.Ended(ended(4))
		require.Empty(t, w.lines(t))
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		want := map[string]any{
			"level": "WARN", "msg": "carried connections reset", "count": 5.0, "reason": "peer_dead", "decided_by": "remote",
			"peer": "10.0.0.1", "flow_id": 3.0,
		}
		require.Equal(t, []map[string]any{want}, w.lines(t))
		w.Ended(reset("off"))
		w.Flush()
		require.Len(t, w.lines(t), 2)
	})
}

func TestDemotionsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(config.AccessOff)
		for id := range uint64(4) {
			w.Demoted(carried(id), report.CarrierSoft, "carrier_unreachable", errors.New("no answer"))
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		require.Equal(t, []map[string]any{{
			"level": "WARN", "msg": "connections go on over the relay", "count": 4.0, "carrier": "rdma-soft",
			"reason": "carrier_unreachable", "peer": "10.0.0.1", "error": "no answer",
		}}, w.lines(t))
	})
}

// Connections that leave one carrier for one cause have a line; what has none yet has it
// when the gateway ends.
func TestDemotionsByCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(config.AccessOff)
		for id := range uint64(3) {
			w.Demoted(carried(id), report.CarrierSoft, "carrier_unreachable", nil)
			w.Demoted(carried(id), report.CarrierShm, "operator", nil)
		}
		w.Demoted(carried(3), report.CarrierSoft, "peer", nil)
		w.Flush()
		counts := map[string]any{}
		for _, line := range w.lines(t) {
			counts[line["carrier"].(string)+" "+line["reason"].(string)] = line["count"]
		}
		require.Equal(t, map[string]any{"rdma-soft carrier_unreachable": 3.0, "rdma-shm operator": 3.0, "rdma-soft peer": 1.0}, counts)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, w.lines(t), 3, "each once")
	})
}

// toldOf adds up the counts of lines.
type toldOf struct {
	slog.Handler
	sum atomic.Uint64
}

func (h *toldOf) Enabled(context.Context, slog.Level) bool { return true }

func (h *toldOf) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "count" {
			h.sum.Add(uint64(a.Value.Int64()))
		}
		return true
	})
	return nil
}

// TestLeftOutOnce: several connections that have lines at once tell of each missing line
// once.
func TestLeftOutOnce(t *testing.T) {
	var told toldOf
	var a access
	log := slog.New(&told)
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 2000 {
				a.leaveOut(log)
				a.untold.flush()
			}
		})
	}
	writers.Wait()
	require.Equal(t, a.leftOut.Load(), told.sum.Load())
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
