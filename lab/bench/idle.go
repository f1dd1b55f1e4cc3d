package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/lab/bench/programs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Connections that idle: what the targets speak of, or what the limit of open
// files, of which a program has one each, leaves. The soft device holds a region
// for each: fewer, so that an ordinary machine has the memory.
const (
	idleCount  = 20_000
	idleSoft   = 4_000
	idleSpare  = 500 // descriptors besides
	idleWarmUp = 200 // of the round that does not count
)

// idleConnections opens many connections, each of which has carried a byte
// there and back, and looks at the gateways for a while: the memory there is more
// than before by connection, in parts, and the processor time they take.
func idleConnections(ctx context.Context, w way, d time.Duration) (_ []float64, err error) {
	count := min(idleCount, openFiles()-idleSpare)
	if w.kind() == Soft9000 {
		count = min(count, idleSoft)
	}
	if d <= warmUp {
		count = min(count, idleWarmUp)
	} else {
		w.used.say(fmt.Sprintf("idle connections of %s: %d (open files of a process: %d)", w.variant, count, openFiles()))
	}
	before, err := w.memory()
	if err != nil {
		return nil, err
	}
	p, err := w.client.StartCmd(w.client.AppCommand(context.Background(), programs.Idle,
		"-to", w.to(echoPort).String(), "-count", strconv.Itoa(count)))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endIdle(p)) }()
	if err := p.WaitOutput(ctx, programs.Held); err != nil {
		return nil, err
	}
	if err := testnet.Sleep(ctx, time.Second); err != nil { // what follows connections settles
		return nil, err
	}
	after, err := w.memory()
	if err != nil {
		return nil, err
	}
	start, err := w.gatewayCPU()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := testnet.Sleep(ctx, 2*d); err != nil {
		return nil, err
	}
	end, err := w.gatewayCPU()
	if err != nil {
		return nil, err
	}
	each := func(part func(memory) float64) float64 { return (part(after) - part(before)) / float64(count) }
	values := []float64{
		each(func(m memory) float64 { return m.all }), each(func(m memory) float64 { return m.own / 2 }),
		each(func(m memory) float64 { return m.shared }), each(func(m memory) float64 { return m.kernel }),
		(end - start) / time.Since(begin).Seconds() * 100,
	}
	if len(w.daemons()) == 0 {
		for _, i := range []int{0, 1, 2, 4} {
			values[i] = math.NaN()
		}
	}
	return values, nil
}

// endIdle ends the client, which closes its connections.
func endIdle(p *testnet.Proc) error {
	if err := p.CloseInput(); err != nil {
		return err
	}
	return p.Wait()
}

// openFiles is the limit of a process that we start: Go raises the soft limit
// to the hard one.
func openFiles() int {
	b, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		return 1024
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); len(f) > 1 {
				if n, err := strconv.Atoi(f[1]); err == nil {
					return n
				}
			}
		}
	}
	return 1024
}

// daemons are the processes of both gateways.
func (w way) daemons() []int { return append(w.client.daemons(), w.server.daemons()...) }

// daemons are the processes of a gateway: the guardian is the one that was
// started, the daemon its child.
func (h *host) daemons() []int {
	if h.gateway == nil {
		return nil
	}
	pid := h.gateway.proc.Pid()
	return append([]int{pid}, h.Children(pid)...)
}

// memory is what both gateways have, and the kernel on the whole machine, in KiB.
type memory struct {
	all    float64 // of the gateways
	own    float64 // of it, what a process has for itself: heap, with garbage, and stacks
	shared float64 // of it, what they share: rings, queue pairs
	kernel float64 // objects of the kernel, mostly of sockets
}

// memory reads it. What processes share with each other counts once.
func (w way) memory() (m memory, err error) {
	for _, pid := range w.daemons() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return m, fmt.Errorf("memory of a gateway: %w", err)
		}
		for _, f := range []struct {
			to   *float64
			name string
		}{{&m.all, "Pss:"}, {&m.own, "Pss_Anon:"}, {&m.shared, "Pss_Shmem:"}} {
			kib, err := parseKiB(string(b), f.name)
			if err != nil {
				return m, err
			}
			*f.to += kib
		}
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, fmt.Errorf("memory of the kernel: %w", err)
	}
	m.kernel, err = parseKiB(string(b), "Slab:")
	return m, err
}

// parseKiB reads a line of smaps_rollup, where a proportional set size counts what
// two processes share half for each, or of meminfo (proc(5)).
func parseKiB(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			kib, err := strconv.ParseUint(f[1], 10, 48)
			if err != nil {
				return 0, fmt.Errorf("memory: %w: %w", errOutput, err)
			}
			return float64(kib), nil
		}
	}
	return 0, fmt.Errorf("memory: %w: no %s", errOutput, name)
}

// gatewayCPU is the processor time of the gateways so far, in seconds.
func (w way) gatewayCPU() (float64, error) {
	total := 0.0
	for _, pid := range w.daemons() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, fmt.Errorf("processor time of a gateway: %w", err)
		}
		t, err := parseProcessCPU(string(b))
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

// parseProcessCPU reads fields 14 and 15 of a process's stat (proc(5)), which
// count from after the command's name.
func parseProcessCPU(text string) (float64, error) {
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 14 {
		return 0, fmt.Errorf("stat of a process: %w", errOutput)
	}
	total := 0.0
	for _, s := range f[11:13] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat of a process: %w: %w", errOutput, err)
		}
		total += float64(n) / ticksPerSecond
	}
	return total, nil
}
