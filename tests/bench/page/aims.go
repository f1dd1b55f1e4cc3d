package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
)

// aim is a figure or ratio that the project aims at.
type aim struct {
	id, text      string
	work, variant string
	base          string // the ratio to this way; empty: the value itself
	least, most   float64
	only          string // of this congestion control; empty: of each
}

// The works that aims are about, by the names of the catalogue.
const (
	bulk        = "bulk, 1 stream"
	bulkCPU     = "bulk, 1 stream, CPU"
	ping        = "ping-pong 64 B, median"
	connections = "connections, 8 at a time"
	besidePing  = "beside bulk: ping-pong 64 B, median"
	besideP99   = "beside bulk: ping-pong 64 B, 99 %"
	idleOwn     = "idle connections, heap and stacks of one gateway"
)

// aims are those of which make bench measures something.
var aims = []aim{
	{id: "P1", text: "one bulk stream over shm, × TCP", work: bulk, variant: bench.Shm, base: comparison.TCP, least: 0.75, only: usual},
	{id: "P1", text: "one bulk stream over shm, × TCP", work: bulk, variant: bench.Shm, base: comparison.TCP, least: 1.1, only: paced},
	{id: "P1", text: "its processor time, × TCP", work: bulkCPU, variant: bench.Shm, base: comparison.TCP, most: 1.5},
	{id: "P1", text: "the stream, × two proxies", work: bulk, variant: bench.Shm, base: bench.TwoProxies, least: 2},
	{id: "P2", text: "64 bytes there and back, shm, × TCP", work: ping, variant: bench.Shm, base: comparison.TCP, most: 1.5},
	{id: "P2", text: "64 bytes beside one bulk stream, 99 %, shm, × TCP", work: besideP99, variant: bench.Shm, base: comparison.TCP, most: 5},
	{id: "P2", text: "the same over soft, × TCP", work: besideP99, variant: bench.Soft1500, base: comparison.TCP, most: 5},
	{id: "P3", text: "redis -c1 over shm, × two proxies", work: "redis -c1", variant: bench.Shm, base: bench.TwoProxies, least: 1.1},
	{id: "P3", text: "redis -c50 over shm, × two proxies", work: "redis -c50", variant: bench.Shm, base: bench.TwoProxies, least: 1.2},
	{id: "P3", text: "redis -c50 -P16 over shm, × two proxies", work: "redis -c50 -P16", variant: bench.Shm, base: bench.TwoProxies, least: 1},
	{id: "P3", text: "`auto`: bulk, × TCP", work: bulk, variant: bench.Auto, base: comparison.TCP, least: 0.97},
	{id: "P3", text: "`auto`: redis -c50, × TCP", work: "redis -c50", variant: bench.Auto, base: comparison.TCP, least: 0.97},
	{id: "P3", text: "`auto`: 64 bytes beside one bulk stream, median, × TCP", work: besidePing, variant: bench.Auto, base: comparison.TCP, most: 1.03},
	{id: "P4", text: "not carried, rule does not select: bulk, × TCP", work: "not carried: bulk", variant: bench.Attached, base: comparison.TCP, least: 0.97},
	{id: "P4", text: "the same: 64 bytes there and back, × TCP", work: "not carried: ping-pong 64 B, median", variant: bench.Attached, base: comparison.TCP, most: 1.03},
	{id: "P4", text: "the same: connect(), × TCP", work: "not carried: connect()", variant: bench.Attached, base: comparison.TCP, most: 1.1},
	{id: "P5", text: "the soft device alone, MTU 1500, × TCP", work: bulk, variant: bench.RC1500, base: comparison.TCP, least: 1, only: paced},
	{id: "P5", text: "the soft device alone, MTU 9000, × TCP", work: bulk, variant: bench.RC9000, base: bench.TCP9000, least: 2, only: paced},
	{id: "P5", text: "one bulk stream over soft, × TCP", work: bulk, variant: bench.Soft1500, base: comparison.TCP, least: 0.45, only: usual},
	{id: "P7", text: "processor time of both gateways, 20,000 idle flows, %", work: "idle connections, CPU of both gateways", variant: bench.Shm, most: 1},
	{id: "P7", text: "an idle flow: heap and stacks of one gateway beside its ring, KiB", work: idleOwn, variant: bench.Shm, most: 2},
	{id: "P8", text: "short connections over shm, × two proxies", work: connections, variant: bench.Shm, base: bench.TwoProxies, least: 1},
	{id: "P8", text: "short connections over soft, × two proxies", work: connections, variant: bench.Soft1500, base: bench.TwoProxies, least: 0.7},
	{id: "P8", text: "one of them over shm, 8 at a time, median, µs", work: connections + ", median", variant: bench.Shm, most: 1500},
	{id: "P8", text: "`auto`: short connections, × TCP", work: connections, variant: bench.Auto, base: comparison.TCP, least: 0.97},
}

// of is the figure that the aim is about.
func (a *aim) of(s *summary) (spread, bool) {
	f := s.figure(a.work, a.variant)
	switch {
	case f == nil || a.only != "" && a.only != s.congestion():
		return spread{}, false
	case a.base != "":
		sp, ok := f.Ratios[a.base]
		return sp, ok
	case f.Value != nil:
		return *f.Value, true
	default:
		return spread{}, false
	}
}

func (a *aim) bound() string {
	if a.most != 0 {
		return "≤ " + comparison.Number(a.most)
	}
	return "≥ " + comparison.Number(a.least)
}

// met compares what a reader sees: two decimals.
func (a *aim) met(sp spread) bool {
	seen := math.Round(sp.Median*100) / 100
	return (a.most == 0 || seen <= a.most) && (a.least == 0 || seen >= a.least)
}

// cell says a figure and whether it meets its aim.
func (a *aim) cell(s *summary) string {
	sp, ok := a.of(s)
	switch {
	case a.only != "" && a.only != s.congestion():
		return "–"
	case !ok:
		return "not measured"
	case a.met(sp):
		return sp.String() + " met"
	default:
		return sp.String() + " **missed**"
	}
}

// String writes a ratio, with its extremes where there is more than one round.
func (sp spread) String() string {
	if sp.Rounds < 2 {
		return fmt.Sprintf("%.2f", sp.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", sp.Median, sp.Min, sp.Max)
}

// aimTable has a row an aim and a column a congestion control.
func aimTable(list []*summary) string {
	var b strings.Builder
	b.WriteString("| | aim | bound |")
	for _, s := range list {
		fmt.Fprintf(&b, " %s |", s.congestion())
	}
	fmt.Fprintf(&b, "\n|---|---|---|%s\n", strings.Repeat("---|", len(list)))
	for i := range aims {
		a := &aims[i]
		fmt.Fprintf(&b, "| %s | %s | %s |", a.id, a.text, a.bound())
		for _, s := range list {
			fmt.Fprintf(&b, " %s |", a.cell(s))
		}
		b.WriteString("\n")
	}
	return b.String()
}
