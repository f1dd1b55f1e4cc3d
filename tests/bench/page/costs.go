package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
)

// cost is a unit of work and the metrics that say what it takes; empty: none does.
type cost struct {
	unit              string
	machine, gateways string // processor time of all of both hosts, and of the gateways
}

var unitCosts = []cost{
	{"10⁹ bytes of one stream", bulkCPU, "bulk, 1 stream, CPU of the gateways"},
	{"64 bytes there and back", "", "ping-pong 64 B, CPU of the gateways"},
	{"connect, request, close", connections + ", CPU", connections + ", CPU of the gateways"},
}

// costs says what gateways take when the transport is free, and what follows for
// owners of adapters: of the first summary that has it.
func costs(list []*summary) string {
	i := slices.IndexFunc(list, func(s *summary) bool { return s.value(unitCosts[0].gateways, bench.Shm) != "–" })
	if i < 0 {
		return ""
	}
	s := list[i]
	var b strings.Builder
	fmt.Fprintf(&b, `
## What the gateway costs

Over shared memory the transport is free: nothing but the gateways' copies moves the bytes. Processor time with %s.

| per | TCP, all of both hosts | shm, all of both hosts | of it the two gateways |
|---|---:|---:|---:|
`, s.congestion())
	for _, c := range unitCosts {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.unit, s.value(c.machine, comparison.TCP), s.value(c.machine, bench.Shm), s.value(c.gateways, bench.Shm))
	}
	fmt.Fprintf(&b, `
An adapter can cost no less. On this machine it would pay for one stream where TCP between two hosts gives less than %s and
less than the adapter, or takes more than %s of both hosts together; for messages where TCP's round trip is longer than %s and
twice `+"`ib_write_lat`"+`; for connections that carry one request never. [ADAPTERS.md](ADAPTERS.md#what-to-expect) has each side by itself.
`, s.value(bulk, bench.Shm), s.value(bulkCPU, bench.Shm), s.value(ping, bench.Shm))
	return b.String()
}

// value is the median of a figure with its unit.
func (s *summary) value(work, variant string) string {
	f := s.figure(work, variant)
	if f == nil || f.Value == nil {
		return "–"
	}
	return comparison.Number(f.Value.Median) + " " + f.Unit
}

// parts are what the memory of an idle connection is in.
var parts = []struct{ work, title string }{
	{idleOwn, "heap (with garbage) and stacks, of each gateway"},
	{"idle connections, rings and queue pairs", "rings and queue pairs, of both"},
	{"idle connections, kernel objects of the machine", "objects of the kernel, on the whole machine: sockets"},
}

// memory says what an idle connection has, of the first summary that has it.
func memory(list []*summary) string {
	i := slices.IndexFunc(list, func(s *summary) bool { return s.value(idleOwn, bench.Shm) != "–" })
	if i < 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## What an idle connection has\n\n| KiB each | TCP | shm | soft |\n|---|---:|---:|---:|\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "| %s |", p.title)
		for _, variant := range []string{comparison.TCP, bench.Shm, bench.Soft9000} {
			value := "–"
			if f := list[i].figure(p.work, variant); f != nil && f.Value != nil && f.Value.Median >= 0 { // the machine's memory also changes by itself
				value = comparison.Number(f.Value.Median)
			}
			fmt.Fprintf(&b, " %s |", value)
		}
		b.WriteString("\n")
	}
	return b.String()
}
