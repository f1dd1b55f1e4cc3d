package bench

import (
	"bufio"
	"bytes"
	"context"
	"math"
	"strconv"
	"strings"
)

// Memory is the memory that a gateway uses and may use; [unknownBytes] if it does not tell. It is read from the
// gateway's metrics, which are available even if a network namespace or container hides the process.
type Memory struct {
	// Rings is the memory of connections' rings and buffers, RingsLimit its limit.
	Rings      uint64 `json:"rings"`
	RingsLimit uint64 `json:"rings_limit"`
	// Heap is heap and stacks, including garbage; Resident is the whole process.
	Heap     uint64 `json:"heap"`
	Resident uint64 `json:"resident"`
	// Flows is the number of flows carried now, FlowLimit its limit.
	Flows     uint64 `json:"flows"`
	FlowLimit uint64 `json:"flow_limit"`
}

const unknownBytes = ^uint64(0)

// values returns all fields, in the order of memorySeries.
func (m *Memory) values() [6]*uint64 {
	return [...]*uint64{&m.Rings, &m.RingsLimit, &m.Heap, &m.Resident, &m.Flows, &m.FlowLimit}
}

func unknownMemory() (m Memory) {
	for _, v := range m.values() {
		*v = unknownBytes
	}
	return m
}

// memorySeries lists the metrics whose sum is each value. A name that ends in a brace stands for all series with that
// prefix.
var memorySeries = [6][]string{
	{`smcgw_registered_memory_bytes{kind="used"}`},
	{"smcgw_memory_limit_bytes"},
	{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes"},
	{"process_resident_memory_bytes"},
	{"smcgw_flows{"},
	{"smcgw_flow_limit"},
}

// parseMemory parses metrics. A value is unknown if one of its series is missing.
func parseMemory(metrics []byte) Memory {
	m := unknownMemory()
	var seen [6]int
	var sums [6]float64
	for lines := bufio.NewScanner(bytes.NewReader(metrics)); lines.Scan(); {
		series, text, ok := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || !(v >= 0 && v < 1<<62) {
			continue
		}
		for i, wanted := range memorySeries {
			for _, w := range wanted {
				if series == w || strings.HasSuffix(w, "{") && strings.HasPrefix(series, w) {
					sums[i] += v
					seen[i]++
				}
			}
		}
	}
	for i, v := range m.values() {
		if seen[i] >= len(memorySeries[i]) {
			*v = uint64(sums[i])
		}
	}
	return m
}

// weighed returns the current memory of a gateway; it is unknown if there is none or it does not answer.
func weighed(ctx context.Context, g Gateway) Memory {
	if g == nil {
		return unknownMemory()
	}
	metrics, err := g.Metrics(ctx)
	if err != nil {
		return unknownMemory()
	}
	return parseMemory(metrics)
}

// share is the fraction, 1/share, of a gateway's limits that may be in use while more idle connections are opened. The
// rest is left to programs.
const share = 4

// full returns which limit has a quarter in use; empty: none.
func (m Memory) full() string {
	over := func(has, limit uint64) bool {
		return has != unknownBytes && limit != unknownBytes && has > limit/share
	}
	switch {
	case over(m.Rings, m.RingsLimit):
		return "a quarter of limits.memory"
	case over(m.Flows, m.FlowLimit):
		return "a quarter of the flow limit"
	default:
		return ""
	}
}

// growth is the additional memory of a gateway per connection, in bytes; NaN if unknown.
type growth struct{ rings, heap, resident float64 }

// until returns the growth from m to n per connection.
func (m Memory) until(n Memory, conns int) growth {
	each := func(before, after uint64) float64 {
		if before == unknownBytes || after == unknownBytes || after < before {
			return math.NaN()
		}
		return float64(after-before) / float64(conns)
	}
	return growth{each(m.Rings, n.Rings), each(m.Heap, n.Heap), each(m.Resident, n.Resident)}
}

// The ends of a run, and the parts of memory.
const here, there = 0, 1

func rings(g growth) float64    { return g.rings }
func heap(g growth) float64     { return g.heap }
func resident(g growth) float64 { return g.resident }

// perFlow returns a part of the memory per connection at one end.
func perFlow(end int, part func(growth) float64) func(measured, cost) float64 {
	return func(m measured, _ cost) float64 { return part(m.memory[end]) }
}
