package page

import (
	"context"
	"math"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
)

// fakeSource is a gateway whose state the test sets.
type fakeSource struct {
	mu       sync.Mutex // guards everything below
	snapshot report.Snapshot
	status   report.Status
	conns    []report.ConnInfo
	peers    []report.PeerInfo
	drain    *report.DrainInfo
	asked    int // how often everything was copied
}

func (f *fakeSource) Totals() report.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

func (f *fakeSource) Snapshot() report.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.snapshot
}

func (f *fakeSource) Status() report.Status                    { return f.status }
func (f *fakeSource) Conns(report.ConnQuery) []report.ConnInfo { return f.conns }
func (f *fakeSource) Peers() []report.PeerInfo                 { return f.peers }
func (f *fakeSource) Draining() *report.DrainInfo              { return f.drain }

// change changes the totals.
func (f *fakeSource) change(fn func(s *report.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(&f.snapshot)
}

func healthy() *fakeSource {
	return &fakeSource{snapshot: report.Snapshot{Mode: report.ModeEnforce, Heartbeat: time.Now()}, status: report.Status{Mode: report.ModeEnforce}}
}

func newTestPage(src *fakeSource) *Page {
	return New(src, About{Host: "h<1>", Version: "1.2.3", Rules: func() int { return 3 }})
}

// text is the page as a browser gets it.
func text(t *testing.T, p *Page) string {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	require.Equal(t, 200, w.Code, w.Body)
	require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
	return w.Body.String()
}

// TestHealth: the headline is the worst, and everything an operator should see is there.
func TestHealth(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(f *fakeSource)
		class string
		word  string
		says  []string
	}{
		{"healthy", func(*fakeSource) {}, "good", "healthy", nil},
		{"silent", func(f *fakeSource) {
			f.snapshot.Heartbeat = time.Now().Add(-time.Minute)
			f.status.Degraded = []string{"address"}
		}, "bad", "silent", []string{"does not beat", "Degraded: address"}},
		{"starts", func(f *fakeSource) { f.snapshot.Heartbeat = time.Time{} }, "bad", "silent", nil},
		{"degraded", func(f *fakeSource) { f.status.Degraded = []string{"device_failed", "config_refused"} }, "warn", "degraded", []string{"device_failed", "A device, queue pair or port of the gateway failed", "config_refused"}},
		{"off", func(f *fakeSource) { f.snapshot.Mode = report.ModeOff }, "off", "off", []string{"smcgw on"}},
		{"observes", func(f *fakeSource) { f.snapshot.Mode = report.ModeObserve }, "off", "observing", []string{"nothing is carried"}},
		{"drains", func(f *fakeSource) { f.drain = &report.DrainInfo{Flows: 7, RemainingSeconds: 90} }, "warn", "draining", []string{"7 connections are left; they are reset in 1m"}},
		{"blocked", func(f *fakeSource) {
			f.status.BlockedLegs = []report.BlockedLegs{{Device: "eth0", Family: "ipv4", At: "output"}, {At: "keeper"}}
		}, "warn", "degraded", []string{"eth0 ipv4: output", "keeper"}},
		{"notes", func(f *fakeSource) { f.status.Notes = []string{"soft0: <b>other</b> port"}; f.status.LogDropped = 1200 }, "good", "healthy", []string{"soft0: &lt;b&gt;other&lt;/b&gt; port", "1\u202f200 lines"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			c.edit(f)
			page := text(t, newTestPage(f))
			require.Contains(t, page, `<span class="pill `+c.class+`">`+c.word+`</span>`)
			require.Contains(t, page, "h&lt;1&gt;")
			for _, want := range c.says {
				require.Contains(t, page, want)
			}
		})
	}
}

// TestPageShows: numbers of the gateway are on the page, and what happened in between is
// told from what happened before.
func TestPageShows(t *testing.T) {
	f := healthy()
	f.snapshot.FlowsTotal = map[report.Carrier]uint64{report.CarrierSoft: 10}
	f.snapshot.Fallbacks = []report.FallbackCount{{Reason: "peer_no_option", Side: report.SideClient, Count: 100}}
	f.snapshot.Ends = []report.EndCount{{Reason: "closed", Count: 9}, {Reason: "peer_dead", DecidedBy: report.DecidedLocal, Count: 4}}
	f.snapshot.Devices = []report.DeviceInfo{{Name: "soft0", Carrier: report.CarrierSoft, State: report.DeviceFailed, Error: "port taken", MTU: 1024, UDPPort: 4791}}
	f.snapshot.Memory, f.snapshot.MemoryLimit = map[string]uint64{"reserved": 950, "used": 1}, 1000
	f.snapshot.Maps = []report.MapUse{{Map: "flows", Entries: 3, Capacity: 4}, {Map: "peers", Entries: 16384}, {Map: "lpm4", Entries: 1, Capacity: 4}}
	f.peers = []report.PeerInfo{{Address: netip.MustParseAddr("fd00::2"), Port: 80, State: report.PeerIncapable, Reason: "app_refused", ExpiresSeconds: 590}}
	f.conns = []report.ConnInfo{
		{Side: report.SideServer, Local: netip.MustParseAddrPort("10.0.0.2:80"), Remote: netip.MustParseAddrPort("10.0.0.1:999"), Carrier: report.CarrierSoft, TxBytes: 2048, AgeSeconds: 2},
		{Side: report.SideClient, Local: netip.MustParseAddrPort("10.0.0.2:81"), State: "negotiating"},
	}
	for _, side := range []report.Side{report.SideClient, report.SideServer} { // one connection
		f.conns = append(f.conns, report.ConnInfo{
			Side: side, Local: netip.MustParseAddrPort("127.0.0.1:5000"), Remote: netip.MustParseAddrPort("127.0.0.1:5000"), Way: report.WayInProcess,
			State: "promoted", TxBytes: 4096, InProcess: &report.InProcessEnd{Conn: 77},
		})
	}
	f.snapshot.InProcess = report.InProcess{Enabled: true, Serving: true, Connections: 1, ConnectionsTotal: 12, RingBytesTotal: 3 << 20}
	p := newTestPage(f)
	p.past.add(newSample(&f.snapshot, time.Now().Add(-time.Minute)))
	f.change(func(s *report.Snapshot) {
		s.Fallbacks = []report.FallbackCount{{Reason: "peer_no_option", Side: report.SideClient, Count: 160}}
		s.InProcess.Native = map[string]uint64{"no_peer": 5, "shared": 0}
		s.BytesTotal = map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 60 << 20}}
	})
	v := p.view(time.Now())
	require.Equal(t, []ReasonRow{newReason("peer_no_option", "", 160, 100), newReason("no_peer", "", 5, 0)}, v.Native)
	require.EqualValues(t, 60, v.Native[0].Recent)
	require.Len(t, v.Ends, 2)
	require.Equal(t, "bad", v.Ends[1].Class)
	require.Equal(t, "peer_dead", v.Ends[1].Name)
	require.InDelta(t, 1<<20, v.Carriers[0].Now.Tx, 1e4)
	require.Equal(t, report.CarrierSoft, v.Carriers[0].Name)
	require.Len(t, v.Memory, 3, "of maps those that are full")
	require.Equal(t, []string{"bad", "", "warn"}, []string{v.Memory[0].Class, v.Memory[1].Class, v.Memory[2].Class})
	require.Len(t, v.Busy, 2)
	require.Equal(t, []string{"127.0.0.1:5000", "in process"}, []string{v.Busy[0].From, v.Busy[0].How})
	require.Equal(t, []string{"10.0.0.1:999", "10.0.0.2:80", "rdma-soft"}, []string{v.Busy[1].From, v.Busy[1].To, v.Busy[1].How})
	require.InDelta(t, 1024, v.Busy[1].Rate, 1e-9)
	page := text(t, p)
	for _, want := range []string{"soft0", "port taken", "4791", "fd00::2", "port 80", "app_refused", "for 9m", "3 rules", "1\u00a0MiB/s", "no device", "eBPF map flows", "Since the start 63\u00a0MiB of 22 connections went by shared memory or RDMA instead of TCP; 160 stayed native.", "In process now", "12 since the start, 3\u00a0MiB by rings"} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "lpm4")
	require.NotContains(t, page, "NaN")
	require.NotContains(t, page, "ZgotmplZ", "html/template has refused a value")
}

// However many browsers ask, the page is made once a second.
func TestPageIsMadeOnceASecond(t *testing.T) {
	f := healthy()
	p := newTestPage(f)
	now := time.Now()
	for range 50 {
		_, err := p.render(now)
		require.NoError(t, err)
	}
	require.Equal(t, 1, f.asked)
	_, err := p.render(now.Add(renderEvery))
	require.NoError(t, err)
	require.Equal(t, 2, f.asked)
}

// The history has five minutes, however long the gateway runs, in order.
func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := healthy()
		p := newTestPage(f)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.Run(ctx); close(done) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		past := p.past.list()
		require.Len(t, past, historySize)
		for i := 1; i < len(past); i++ {
			require.Equal(t, sampleEvery, past[i].at.Sub(past[i-1].at))
		}
		require.Equal(t, 5*time.Minute, past[len(past)-1].at.Sub(past[0].at))
		stop()
		<-done
	})
}

// A line stays inside of its area, whatever it is of.
func TestSparkStaysInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Float64Range(0, math.MaxFloat64/2), 0, historySize-1).Draw(t, "values")
		s := newSpark("x", map[string][]float64{"tx": list}, "tx", "rx")
		if len(list) < 2 {
			require.Empty(t, s.Lines)
			return
		}
		require.Len(t, s.Lines, 1)
		points := strings.Fields(s.Lines[0].Points)
		require.Len(t, points, len(list))
		for _, point := range points {
			x, y, ok := strings.Cut(point, ",")
			require.True(t, ok)
			require.GreaterOrEqual(t, number(t, x), 0.0)
			require.LessOrEqual(t, number(t, x), sparkWidth)
			require.GreaterOrEqual(t, number(t, y), 0.0)
			require.LessOrEqual(t, number(t, y), sparkHeight)
		}
	})
}

func TestFormats(t *testing.T) {
	for n, want := range map[uint64]string{0: "0\u00a0B", 1023: "1023\u00a0B", 1536: "1.5\u00a0KiB", 5 << 20: "5\u00a0MiB", 1 << 63: "8\u00a0EiB"} {
		require.Equal(t, want, size(n))
	}
	for s, want := range map[float64]string{0: "0\u00a0ms", 0.0123: "12\u00a0ms", 1.26: "1.3\u00a0s", 61: "1m\u00a01s", 3660: "1h\u00a01m", 400000: "4d\u00a015h"} {
		require.Equal(t, want, age(s))
	}
	require.Equal(t, "1\u202f234\u202f567", count(1234567))
	require.Equal(t, "0.5", count(0.5))
	require.Equal(t, "-12", count(-12))
	require.Equal(t, "rdma-shm, relay", report.JoinCarriers([]report.Carrier{report.CarrierShm, report.CarrierRelay}))
}

func number(t *rapid.T, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return v
}

// What the relay moves is TCP.
func TestMoved(t *testing.T) {
	s := report.Snapshot{
		FlowsTotal: map[report.Carrier]uint64{report.CarrierShm: 1},
		BytesTotal: map[report.Carrier]report.ByteCount{report.CarrierRelay: {Tx: 1 << 30}},
	}
	require.Equal(t, "Nothing has gone by shared memory or RDMA since the start.", moved(&s))
	s.BytesTotal[report.CarrierShm] = report.ByteCount{Tx: 1 << 10, Rx: 1 << 10}
	require.Equal(t, "Since the start 2\u00a0KiB of 1 connection went by shared memory or RDMA instead of TCP; 0 stayed native.", moved(&s))
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
