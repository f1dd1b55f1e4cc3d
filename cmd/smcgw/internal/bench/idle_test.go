package bench

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
)

const someMetrics = `# HELP smcgw_flows Connections carried now.
smcgw_flows{carrier="rdma-shm"} 3
smcgw_flows{carrier="relay"} 1
smcgw_flows_total{carrier="relay"} 100
smcgw_flow_limit 20000
smcgw_registered_memory_bytes{kind="reserved"} 9e+06
smcgw_registered_memory_bytes{kind="used"} 2.5e+06
smcgw_memory_limit_bytes 1.073741824e+09
go_memstats_heap_alloc_bytes 4e+06
go_memstats_stack_inuse_bytes 500000
process_resident_memory_bytes 3e+07
`

func TestMemory(t *testing.T) {
	require.Equal(t, Memory{
		Rings: 2_500_000, RingsLimit: 1 << 30, Heap: 4_500_000, Resident: 30_000_000, Flows: 4, FlowLimit: 20000,
	}, parseMemory([]byte(someMetrics)))
	for _, none := range []string{"", "smcgw_flow_limit", "smcgw_flow_limit x\n", "smcgw_flow_limit -1\n", "smcgw_flow_limit NaN\n", "go_memstats_heap_alloc_bytes 1\n"} {
		require.Equal(t, unknownMemory(), parseMemory([]byte(none)), none)
	}
}

func TestMemoryTruncated(t *testing.T) {
	for i := range someMetrics {
		m := parseMemory([]byte(someMetrics[:i]))
		require.False(t, m.FlowLimit != unknownBytes && m.FlowLimit > 20000, i)
	}
}

func FuzzMemory(f *testing.F) {
	f.Add([]byte(someMetrics))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := parseMemory(b)
		for _, v := range m.values() {
			require.True(t, *v == unknownBytes || *v <= 2<<62, "%+v", m)
		}
		m.full()
	})
}

func TestMemoryGrows(t *testing.T) {
	before, after := Memory{Rings: 100, Heap: 70, Resident: unknownBytes}, Memory{Rings: 300, Heap: 60, Resident: 9}
	g := before.until(after, 4)
	require.Equal(t, 50.0, g.rings)
	require.True(t, g.heap != g.heap && g.resident != g.resident, "freed meanwhile, and unknown: %+v", g)
}

// weighing has a gateway use so many bytes more for each connection that arrives.
func (r *recorder) weighing(limit, each int) func() string {
	return func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := len(r.book) * each
		return fmt.Sprintf("smcgw_registered_memory_bytes{kind=\"used\"} %d\nsmcgw_memory_limit_bytes %d\n"+
			"go_memstats_heap_alloc_bytes %d\ngo_memstats_stack_inuse_bytes %d\nprocess_resident_memory_bytes %d\n", n, limit, n, n, 3*n)
	}
}

// shmOnly is a gateway with memory to share.
func shmOnly(t *testing.T) (Options, *fakeGateway) {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g := &fakeGateway{pid: os.Getpid(), devices: []report.DeviceInfo{{Kind: report.DeviceShm, Carrier: report.CarrierShm, State: report.DeviceActive}}}
	book := &recorder{Listener: ln, g: g}
	g.conns, g.metrics = book.conns, book.weighing(1<<40, 5000)
	to, token := serveOn(t, book, &fakeGateway{pid: os.Getpid(), metrics: book.weighing(1<<40, 7000)})
	return Options{To: to, Token: token, Duration: 10 * time.Millisecond, Rounds: 1, Idle: 150, Gateway: g}, g
}

// TestRunWeighsIdleConnections: more are held than a server takes of others, and both
// gateways say what each costs.
func TestRunWeighsIdleConnections(t *testing.T) {
	o, g := shmOnly(t)
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	for part, want := range map[string]float64{
		"rings": 5000, "heap": 10000, "resident": 15000,
		"rings, serving host": 7000, "heap, serving host": 14000, "resident, serving host": 21000,
	} {
		s := series(t, r, "idle connection, "+part, "shm")
		require.Equal(t, []float64{want}, s.Values, part)
		require.Empty(t, s.Note)
		s = series(t, r, "idle connection, "+part, comparison.TCP)
		require.Empty(t, s.Values)
		require.Equal(t, "no gateway has memory for it", s.Note)
	}
	var text, doc strings.Builder
	require.NoError(t, r.Text(&text))
	require.Contains(t, text.String(), `
idle connection, rings (B, less is better)
  VARIANT  MEDIAN  MIN   MAX   ROUNDS  VS TCP  NOTE
  tcp      -       -     -     0       -       no gateway has memory for it
  shm      5000    5000  5000  1       -       -
  plain TCP was not measured: nothing to compare with
`)
	require.NoError(t, r.JSON(&doc))
	require.Contains(t, doc.String(), `{"work":"idle connection, rings","variant":"tcp","unit":"B","better":"less","values":[],"note":"no gateway has memory for it"}`)
	require.Contains(t, doc.String(), `{"work":"idle connection, rings, serving host","variant":"shm","unit":"B","better":"less","values":[7000],"spread":{"median":7000,"min":7000,"max":7000,"n":1}}`)

	// A cold peer is one trial, of the carrier.
	for _, trial := range g.tried {
		require.False(t, trial.Cold && trial.Action == report.ActionPass)
	}
	require.Contains(t, g.tried, config.Trial{Peer: o.To.Addr(), Port: o.To.Port(), Action: report.ActionAccelerate, Carrier: report.CarrierShm, Way: report.WaySteered, Cold: true})
	for _, v := range []string{comparison.TCP, "shm"} {
		require.Equal(t, 1, series(t, r, "connect, request, close, cold peer", v).Spread().N)
		require.Equal(t, 1, series(t, r, "connect, request, close, cold peer, p50", v).Spread().N)
	}
}

// TestIdleConnectionsLeaveRoom: a gateway that has a quarter in use gets no more, and one
// that had from the beginning gets none.
func TestIdleConnectionsLeaveRoom(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	g := &fakeGateway{}
	book := &recorder{Listener: ln, g: g}
	to, token := serveOn(t, book, nil)
	s, err := open(t.Context(), to, token)
	require.NoError(t, err)
	defer s.close()
	s.own, s.idle = g, 500
	g.metrics = book.weighing(4*70*1000, 1000)
	m, err := s.hold(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 2*idleStep, m.count)
	require.Contains(t, m.note, "128 of 500 connections held: a quarter of limits.memory is in use here")
	require.Contains(t, m.note, "the gateway on the serving host does not tell its memory")
	require.Equal(t, 1000.0, m.memory[here].rings)

	_, err = s.hold(t.Context(), 0)
	require.ErrorIs(t, err, errNoRoom)
	require.ErrorContains(t, err, "a quarter of limits.memory is in use here")
	require.Equal(t, "a quarter of the flow limit", Memory{Rings: unknownBytes, Flows: 26, FlowLimit: 100}.full())
}

// TestServerBoundsWork: a session has room for the most that a comparison holds, and its
// connections are none of those that have not said what they are for.
func TestServerBoundsWork(t *testing.T) {
	id := [sessionSize]byte{1}
	s := &server{conns: map[net.Conn]bool{}, session: &id, working: maxWork}
	require.False(t, s.begin(nil, id))
	s.working = min(maxWork, openFiles()-maxConns-spareFiles) - 1
	require.True(t, s.begin(nil, id))
	require.False(t, s.begin(nil, id))
	require.GreaterOrEqual(t, maxWork, maxIdle)
}
