package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pins are the processors for the programs of clients and servers. Programs that exchange one message and its answer at
// a time have two speeds. If the scheduler puts both on one processor, a message is a task switch; if it puts them on
// two, it wakes up a processor, which takes ten times as long. Which one happens is chance, the more so the fewer other
// processes there are. Hosts of a real network do not share a processor, so in every variant clients have one processor
// and servers another. Gateways and proxies run wherever the scheduler puts them.
type pins struct {
	client, server int
	all            int // number of usable processors
}

// choosePins selects the first processor, and the first that does not belong to the same core, or the second if all do.
// With one processor there is no choice.
func choosePins(allowed []int, siblings func(cpu int) string) pins {
	p := pins{all: len(allowed)}
	if len(allowed) < 2 {
		return p
	}
	p.client, p.server = allowed[0], allowed[1]
	for _, cpu := range allowed[1:] {
		if siblings(cpu) != siblings(p.client) {
			p.server = cpu
			break
		}
	}
	return p
}

// thesePins returns the pins for this machine.
func thesePins() pins {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return pins{}
	}
	var allowed []int
	for cpu := 0; len(allowed) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	return choosePins(allowed, func(cpu int) string {
		b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
		if err != nil {
			return strconv.Itoa(cpu) // unknown: assume a core of its own
		}
		return strings.TrimSpace(string(b))
	})
}

// String returns a note for the report.
func (p pins) String() string {
	if p.all < 2 {
		return "one processor: the programs of latency works share it, and round trips are switches of tasks"
	}
	return fmt.Sprintf("programs of latency works: clients on processor %d, servers on %d; gateways and proxies on any", p.client, p.server)
}

// pinned returns a command line that runs a program on one processor only.
func (p pins) pinned(cpu int, program ...string) []string {
	if p.all < 2 {
		return program
	}
	return append([]string{"taskset", "--cpu-list", strconv.Itoa(cpu)}, program...)
}

// runPinned runs a client on the clients' processor and returns its output.
func (h *host) runPinned(ctx context.Context, program ...string) (string, error) {
	words := h.pins.pinned(h.pins.client, program...)
	return h.Run(ctx, words[0], words[1:]...)
}
