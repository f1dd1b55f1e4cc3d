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

// ticks are the processor times of the whole machine since its start, in USER_HZ (hundredths of a second) as in
// proc(5).
type ticks struct{ busy, all uint64 }

const ticksPerSecond = 100

var errNoCPU = errors.New("no line of all processors in /proc/stat")

// machineCPU reads the processor times of the machine.
func machineCPU() (ticks, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, fmt.Errorf("processor time: %w", err)
	}
	return parseCPU(string(b))
}

// parseCPU parses the first line: user, nice, system, idle, iowait, irq, softirq, steal. Time of guests is included in
// user. Time stolen by other machines does not count as busy.
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

// busySince returns the busy processor seconds since then.
func (t ticks) busySince(then ticks) float64 { return float64(t.busy-then.busy) / ticksPerSecond }

// errStat means that the processor time of a cgroup cannot be read.
var errStat = errors.New("no usage_usec in cpu.stat")

// hostsCPU returns the processor time of everything on both hosts so far, in seconds: programs and gateways.
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

// parseUsage parses the processor time in seconds from cpu.stat of a cgroup.
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

// meter holds the processor times at the beginning of a run.
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
	machine  float64 // of the whole machine
	gateways float64 // of the way's gateways; NaN if there are none
	programs float64 // of both hosts
}

// spent returns the processor time used since m was taken.
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

// openFiles returns the limit of open files of a process of this program, for which Go raises the soft limit to the
// hard limit.
func openFiles() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<30))
}

// daemons returns the processes of both gateways.
func (w way) daemons() []int { return append(w.client.daemons(), w.server.daemons()...) }

// daemons returns the processes of a gateway: the guardian, which was started, and its child, the daemon.
func (h *host) daemons() []int {
	if h.gateway == nil {
		return nil
	}
	pid := h.gateway.proc.Pid()
	return append([]int{pid}, h.Children(pid)...)
}

// memory is the memory of both gateways, and of the kernel of the whole machine, in KiB.
type memory struct {
	all    float64 // of the gateways
	own    float64 // private part of it: heap, including garbage, and stacks
	shared float64 // shared part of it: rings, queue pairs
	kernel float64 // kernel objects, mostly of sockets
}

// memory reads the current values. Memory that processes share counts once.
func (w way) memory() (m memory, err error) {
	for _, pid := range w.daemons() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return m, fmt.Errorf("memory of a gateway: %w", err)
		}
		for _, f := range []struct {
			to   *float64
			name string
		}{{&m.all, "Pss"}, {&m.own, "Pss_Anon"}, {&m.shared, "Pss_Shmem"}} {
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
	m.kernel, err = parseKiB(string(b), "Slab")
	return m, err
}

// parseKiB parses a line of smaps_rollup, in whose proportional set size each of two processes has half of what they
// share, or of meminfo (proc(5)).
func parseKiB(text, name string) (float64, error) {
	n, ok := procfs.Bytes(text, name)
	if !ok {
		return 0, fmt.Errorf("memory: %w: no %s", testnet.ErrOutput, name)
	}
	return float64(n) / 1024, nil
}

// gatewayCPU returns the processor time of the gateways so far, in seconds.
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
