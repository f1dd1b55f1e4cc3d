package bench

import (
	"context"
	"errors"
	"fmt"
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
// there and back, and looks at the gateways for a while: the memory they have
// more than before by connection, and the processor time they take.
func idleConnections(ctx context.Context, w way, d time.Duration) (_ []float64, err error) {
	count := min(idleCount, openFiles()-idleSpare)
	if w.variant != Shm {
		count = min(count, idleSoft)
	}
	if d <= warmUp {
		count = min(count, idleWarmUp)
	} else {
		w.used.say(fmt.Sprintf("idle connections of %s: %d (open files of a process: %d)", w.variant, count, openFiles()))
	}
	before, err := w.gatewayMemory()
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
	after, err := w.gatewayMemory()
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
	return []float64{(after - before) / 1024 / float64(count), (end - start) / time.Since(begin).Seconds() * 100}, nil
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

// gatewayMemory is what the gateways' processes have for themselves, and share
// with each other counted once, in bytes.
func (w way) gatewayMemory() (float64, error) {
	total := 0.0
	for _, pid := range w.daemons() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, fmt.Errorf("memory of a gateway: %w", err)
		}
		kib, err := parsePSS(string(b))
		if err != nil {
			return 0, err
		}
		total += kib * 1024
	}
	return total, nil
}

// parsePSS reads the proportional set size of smaps_rollup in KiB (proc(5)):
// what two processes share counts half for each.
func parsePSS(text string) (float64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			return number(f[1])
		}
	}
	return 0, fmt.Errorf("smaps_rollup: %w: no Pss", errOutput)
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
// count from behind the command's name.
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
