package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Programs that wait for each other, a message and its answer at a time, have
// two speeds: the scheduler puts both on one processor, where a message is a
// switch of tasks, or on two, where it wakes a processor up, which takes ten
// times as long. Which one it is is chance, and the more so the fewer processes
// there are besides. Hosts of a real network do not share a processor: clients
// have one, servers another, in every variant. Gateways and proxies run where
// the scheduler likes.
type pins struct {
	client, server int
	all            int // processors that we may use
}

// choosePins takes the first processor, and the first that is no part of the same
// core; or the second where all are. With one processor there is no choice.
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

// thesePins are those of this machine.
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
			return strconv.Itoa(cpu) // not known: a core of its own
		}
		return strings.TrimSpace(string(b))
	})
}

// String says it in a note.
func (p pins) String() string {
	if p.all < 2 {
		return "one processor: the programs of latency works share it, and round trips are switches of tasks"
	}
	return fmt.Sprintf("programs of latency works: clients on processor %d, servers on %d; gateways and proxies on any", p.client, p.server)
}

// pinned is a program and its arguments, which may use one processor only.
func (p pins) pinned(cpu int, program ...string) []string {
	if p.all < 2 {
		return program
	}
	return append([]string{"taskset", "--cpu-list", strconv.Itoa(cpu)}, program...)
}

// runPinned runs a client on the clients' processor and returns what it printed.
func (h *host) runPinned(ctx context.Context, program ...string) (string, error) {
	words := h.pins.pinned(h.pins.client, program...)
	return h.Run(ctx, words[0], words[1:]...)
}
