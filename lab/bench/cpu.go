package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
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

// meter reads processor times before and after a run.
type meter struct {
	w        way
	machine  ticks
	gateways float64
}

func (w way) meter() (m meter, err error) {
	m.w = w
	if m.gateways, err = w.gatewayCPU(); err != nil {
		return m, err
	}
	m.machine, err = machineCPU()
	return m, err
}

// spent is what the whole machine has worked since, and the way's gateways of
// it, in seconds; NaN for a way without gateways.
func (m meter) spent() (machine, gateways float64, err error) {
	now, err := m.w.meter()
	if err != nil {
		return 0, 0, err
	}
	gateways = now.gateways - m.gateways
	if m.w.client.gateway == nil && m.w.server.gateway == nil {
		gateways = math.NaN()
	}
	return now.machine.busySince(m.machine), gateways, nil
}
