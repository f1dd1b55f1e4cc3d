package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// chainPort is where the first of two HAProxys listens, one on each host.
const chainPort = 7002

// chain starts an HAProxy per host, as the common way to put something of one's
// own between two programs. It reports false where there is none.
func (p *pair) chain(b *testing.B) bool {
	if _, err := exec.LookPath("haproxy"); err != nil {
		return false
	}
	dir := b.TempDir()
	hop := func(h *testnet.Host, name, bind, to string) {
		file := filepath.Join(dir, name+".cfg")
		text := fmt.Sprintf("global\n maxconn 4000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"+
			"listen %s\n bind %s\n server s %s\n", name, bind, to)
		require.NoError(b, os.WriteFile(file, []byte(text), 0o600))
		_, err := h.Start("haproxy", "-db", "-f", file)
		require.NoError(b, err)
	}
	between := p.h2.AddrPort4(chainPort).String()
	hop(p.h2, "second", between, p.h2.AddrPort4(port).String())
	hop(p.h1, "first", p.h1.AddrPort4(chainPort).String(), between)
	awaitPort(b, p.h1, p.h1.AddrPort4(chainPort).String())
	return true
}

func awaitPort(b *testing.B, h *testnet.Host, addr string) {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	for {
		c, err := h.Dial(ctx, "tcp", addr)
		if err == nil {
			_ = c.Close()
			return
		}
		require.NoError(b, ctx.Err())
		time.Sleep(20 * time.Millisecond)
	}
}

// short runs connections for one request each and returns what they took.
func (p *pair) short(b *testing.B, to string, count, parallel int) apps.Event {
	e, err := p.h1.RunApp(b.Context(), "short", "-count", strconv.Itoa(count), "-parallel", strconv.Itoa(parallel), "-to", to)
	require.NoError(b, err)
	require.Zero(b, e.Failed, e.Error)
	return e
}

// cpuTime is how long the processors of this machine have been busy, in seconds.
func cpuTime(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/stat")
	require.NoError(b, err)
	var user, nice, system, idle, iowait, irq, softirq float64
	_, err = fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq)
	require.NoError(b, err)
	return (user + nice + system + irq + softirq) / 100
}

// gatewayTime is how long the processors have worked for the gateways, in seconds: the
// guardians, and the daemons, which are their children. The kernel counts ticks of 10 ms.
func (p *pair) gatewayTime(b *testing.B) (total float64) {
	for h, pid := range p.guardians {
		for _, pid := range append(h.Children(pid), pid) {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			require.NoError(b, err)
			fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after the name, proc(5)
			for _, field := range fields[11:13] {
				ticks, err := strconv.ParseUint(field, 10, 64)
				require.NoError(b, err)
				total += float64(ticks) / 100
			}
		}
	}
	return total
}

// BenchmarkShort is connections for one request of 64 bytes each, direct, carried by each
// device, and through two HAProxys, one at a time and eight at a time. Times of processors
// are for one connection.
func BenchmarkShort(b *testing.B) {
	for _, device := range []string{"shm", "soft"} {
		for _, load := range []struct{ count, parallel int }{{600, 1}, {2000, 8}} {
			b.Run(fmt.Sprintf("%s/parallel=%d", device, load.parallel), func(b *testing.B) {
				benchmarkShort(b, device, load.count, load.parallel)
			})
		}
	}
}

func benchmarkShort(b *testing.B, device string, count, parallel int) {
	p := newPairOf(b, strings.Replace(configuration, "[shm]", "["+device+"]", 1))
	_, err := p.h2.StartApp("serve", "-quiet", fmt.Sprintf("echo=[::]:%d", port))
	require.NoError(b, err)
	ways := []string{"direct", "carried"}
	if p.chain(b) {
		ways = append(ways, "chain")
	}
	var rates, whole, tail, connect, busy, gateways contest
	for b.Loop() {
		for _, way := range ways {
			to := p.h2.AddrPort4(port).String()
			if way == "chain" {
				to = p.h1.AddrPort4(chainPort).String()
			}
			p.round(b, way != "carried", func() float64 {
				before, own := cpuTime(b), p.gatewayTime(b)
				e := p.short(b, to, count, parallel)
				rates.enter(way, float64(e.OK)/float64(e.AllMicros)*1e6, 0)
				whole.enter(way, float64(e.MedianMicros), 0)
				tail.enter(way, float64(e.P99Micros), 0)
				connect.enter(way, float64(e.ConnectMicros), 0)
				busy.enter(way, (cpuTime(b)-before)*1e6/float64(e.OK), 0)
				if way == "carried" {
					gateways.enter(way, (p.gatewayTime(b)-own)*1e6/float64(e.OK), 0)
				}
				return 0
			})
		}
	}
	references := []string{"direct"}
	if len(ways) == 3 {
		references = append(references, "chain")
	}
	rates.report(b, "conn/s", references...)
	whole.report(b, "us", references...)
	tail.report(b, "us-p99", references...)
	connect.report(b, "us-connect", references...)
	busy.report(b, "us-cpu", references...)
	gateways.report(b, "us-gateways")
}
