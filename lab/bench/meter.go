package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// ticks are the processor times of the whole machine in USER_HZ, a hundredth of
// a second, as proc(5) counts them since the start.
type ticks struct{ busy, all uint64 }

const ticksPerSecond = 100

var errNoCPU = errors.New("no line of all processors in /proc/stat")

// machineCPU reads what the machine has worked so far.
func machineCPU() (ticks, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, fmt.Errorf("processor time: %w", err)
	}
	return parseCPU(string(b))
}

// parseCPU reads the first line: user, nice, system, idle, iowait, irq, softirq,
// steal; what guests use is counted in user already. Time stolen by other
// machines is not this one's work.
func parseCPU(text string) (t ticks, err error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return ticks{}, errNoCPU
	}
	for i, s := range f[1:9] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return ticks{}, fmt.Errorf("%w: %w", errNoCPU, err)
		}
		t.all += n
		switch i {
		case 3, 4, 7: // idle, iowait, steal
		default:
			t.busy += n
		}
	}
	return t, nil
}

// busySince returns the processor seconds worked since then.
func (t ticks) busySince(then ticks) float64 { return float64(t.busy-then.busy) / ticksPerSecond }

// errStat says that the processor time of a control group cannot be read.
var errStat = errors.New("no usage_usec in cpu.stat")

// hostsCPU is the processor time of everything on both hosts so far, in seconds: programs and gateways.
func (w way) hostsCPU() (total float64, err error) {
	hosts := []*host{w.client, w.server}
	if w.client == w.server {
		hosts = hosts[:1]
	}
	for _, h := range hosts {
		b, err := os.ReadFile(filepath.Join(h.cgroup.Path, "cpu.stat"))
		if err != nil {
			return 0, fmt.Errorf("processor time of programs: %w", err)
		}
		t, err := parseUsage(string(b))
		if err != nil {
			return 0, err
		}
		total += t
	}
	return total, nil
}

// parseUsage reads the processor time in seconds from cpu.stat of a control group.
func parseUsage(text string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%w: %w", errStat, err)
			}
			return float64(n) / 1e6, nil
		}
	}
	return 0, errStat
}

// meter reads processor times before and after a run.
type meter struct {
	w        way
	machine  ticks
	gateways float64
	hosts    float64
}

func (w way) meter() (m meter, err error) {
	m.w = w
	if m.gateways, err = w.gatewayCPU(); err != nil {
		return m, err
	}
	if m.hosts, err = w.hostsCPU(); err != nil {
		return m, err
	}
	m.machine, err = machineCPU()
	return m, err
}

// effort is processor time in seconds.
type effort struct {
	machine  float64 // all of it
	gateways float64 // of the way; NaN where there are none
	programs float64 // of both hosts
}

// spent is what was worked since.
func (m meter) spent() (e effort, err error) {
	now, err := m.w.meter()
	if err != nil {
		return e, err
	}
	e = effort{machine: now.machine.busySince(m.machine), gateways: now.gateways - m.gateways}
	e.programs = now.hosts - m.hosts - e.gateways
	if m.w.client.gateway == nil && m.w.server.gateway == nil {
		e.gateways = math.NaN()
	}
	return e, nil
}

// openFiles is the limit of a process of ours: Go raises the soft limit to the hard one.
func openFiles() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<30))
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
				return 0, fmt.Errorf("memory: %w: %w", testnet.ErrOutput, err)
			}
			return float64(kib), nil
		}
	}
	return 0, fmt.Errorf("memory: %w: no %s", testnet.ErrOutput, name)
}

// gatewayCPU is the processor time of the gateways so far, in seconds.
func (w way) gatewayCPU() (float64, error) {
	total := 0.0
	for _, pid := range w.daemons() {
		t, ok := procfs.StatOf(pid).CPU()
		if !ok {
			return 0, fmt.Errorf("processor time of a gateway: %w", testnet.ErrOutput)
		}
		total += t.Seconds()
	}
	return total, nil
}
