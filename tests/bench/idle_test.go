package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

const idleConfig = `schema: smcgw/v1
mode: enforce
admin: %[1]s/%[2]s.sock
devices: [eth0]
policy: [{ name: bench, match: { ports: [7001, 7002, 7003] }, action: accelerate }]
carriers: [shm]
shm_dir: %[1]s/shm
state_dir: %[1]s/%[2]s.state
limits: { handshake_timeout: 5s, memory: 8GiB, new_flows_at_once: 1024, max_flows: 30000, peer_share: 100%% }
`

// processUse is what the gateway of a host uses: its daemon and its guardian.
type processUse struct{ anon, shmem, cpu, files float64 } // KiB, KiB, seconds, descriptors

// slab is what the kernel uses for its objects, of all hosts together, in KiB.
func slab(b *testing.B) (kib float64) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	require.NoError(b, err)
	for line := range strings.Lines(string(meminfo)) {
		_, _ = fmt.Sscanf(line, "Slab: %f", &kib)
	}
	return kib
}

func useOf(b *testing.B, h *testnet.Host) (u processUse) {
	for _, pid := range h.Processes() {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(line), "\x00-c\x00") {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(b, err)
		for line := range strings.Lines(string(status)) {
			var kib float64
			if _, err := fmt.Sscanf(line, "RssAnon: %f", &kib); err == nil {
				u.anon += kib
			}
			if _, err := fmt.Sscanf(line, "RssShmem: %f", &kib); err == nil {
				u.shmem += kib
			}
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(b, err)
		u.files += float64(len(files))
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(b, err)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
		for _, f := range fields[12-1 : 14-1] {
			ticks, err := strconv.ParseFloat(f, 64)
			require.NoError(b, err)
			u.cpu += ticks / 100
		}
	}
	require.NotZero(b, u.anon, "no gateway on %s", h.Name)
	return u
}

// BenchmarkIdle is the memory and the processor time of gateways whose flows are
// idle. SMCGW_IDLE says how many there are, 15000 otherwise: a process may have as
// many descriptors as flows and a few more.
func BenchmarkIdle(b *testing.B) {
	want := 15000
	if s := os.Getenv("SMCGW_IDLE"); s != "" {
		var err error
		want, err = strconv.Atoi(s)
		require.NoError(b, err)
	}
	for b.Loop() {
		p := newPairOf(b, idleConfig)
		hosts := []*testnet.Host{p.h1, p.h2}
		var before, after, later [2]processUse
		for i, h := range hosts {
			before[i] = useOf(b, h)
		}
		kernel := slab(b)
		const programs = 3
		for i := range programs {
			_, err := p.h2.StartApp("serve", "-quiet", fmt.Sprintf("echo=[::]:%d", port+i))
			require.NoError(b, err)
			_, err = p.h1.StartApp("hold", "-count", strconv.Itoa(want/programs), "-to", p.h2.AddrPort4(uint16(port+i)).String())
			require.NoError(b, err)
		}
		carried := func() (n int) {
			st, err := p.admin.Status(b.Context())
			require.NoError(b, err)
			return st.Flows[report.CarrierShm]
		}
		require.Eventually(b, func() bool { return carried() >= want/programs*programs }, 90*time.Second, 500*time.Millisecond)
		time.Sleep(2 * time.Second)
		n := float64(carried())
		for i, h := range hosts {
			after[i] = useOf(b, h)
		}
		const idle = 5 * time.Second
		time.Sleep(idle)
		for i, h := range hosts {
			later[i] = useOf(b, h)
		}
		b.ReportMetric(n, "flows")
		b.ReportMetric((slab(b)-kernel)/n, "kernel-KiB/flow")
		for i, h := range hosts {
			b.ReportMetric((after[i].anon-before[i].anon)/n, h.Name+"-KiB-anon/flow")
			b.ReportMetric((after[i].shmem-before[i].shmem)/n, h.Name+"-KiB-shared/flow")
			b.ReportMetric((after[i].files-before[i].files)/n, h.Name+"-files/flow")
			b.ReportMetric((later[i].cpu-after[i].cpu)/idle.Seconds()*100, h.Name+"-%cpu")
		}
	}
}
