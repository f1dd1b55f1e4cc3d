package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/internal/comparison"
)

// Markers of a page, between which the text is generated.
const (
	pageBegin = "<!-- what follows is written by make bench -->\n"
	pageEnd   = "<!-- what make bench writes ends here -->\n"
)

var errMarkers = errors.New("no markers of generated text")

// WritePage writes the tables of reports into the page, between its markers. Each file is a JSON report with a
// different congestion control.
func WritePage(page string, files []string) error {
	var list []*comparison.Report
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("page: %w", err)
		}
		r := new(comparison.Report)
		if err := json.Unmarshal(b, r); err != nil {
			return fmt.Errorf("page: %s: %w", file, err)
		}
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b *comparison.Report) int { return cmp.Compare(rank(a), rank(b)) })
	old, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	updated, err := between(string(old), front(list))
	if err != nil {
		return fmt.Errorf("page: %s: %w", page, err)
	}
	return os.WriteFile(page, []byte(updated), 0o644)
}

// rank sorts the congestion control of most users first.
func rank(r *comparison.Report) int {
	if r.Machine.CongestionControl == Usual {
		return 0
	}
	return 1
}

// between replaces the text between the markers.
func between(old, text string) (string, error) {
	head, rest, ok := strings.Cut(old, pageBegin)
	_, tail, ok2 := strings.Cut(rest, pageEnd)
	if !ok || !ok2 {
		return "", errMarkers
	}
	return head + pageBegin + text + pageEnd + tail, nil
}

// row is a metric of a table, and its title for readers.
type row struct{ metric, title string }

// promotedRows is the table of programs with the library. Each row has the way whose ratio it shows.
var promotedRows = []struct {
	row
	variant string
}{
	{row{bulk1, "one bulk stream"}, InProcess},
	{row{bulk1 + programsCPU, "its processor time, of the programs"}, InProcess},
	{row{ping64 + median, "64 bytes there and back, median"}, InProcess},
	{row{ping64 + p99, "the same, 99 %"}, InProcess},
	{row{ping64 + median, "the same with spin, median"}, InProcessSpin},
	{row{redisC1, "redis -c1"}, InProcess},
	{row{redisC50, "redis -c50"}, InProcess},
	{row{redisC50 + programsCPU, "its processor time, of the programs"}, InProcess},
	{row{redisP16, "redis -c50 -P16"}, InProcess},
	{row{web1K, "nginx, 1 KiB, 16 connections"}, InProcess},
	{row{web1M, "nginx, 1 MiB, 4 connections"}, InProcess},
	{row{webClosed, "nginx, a connection a request: none promoted"}, InProcess},
	{row{besidePing + p99, "64 bytes beside one bulk stream, 99 %"}, InProcess},
}

// steeredRows and steeredColumns are the table of each congestion control.
var (
	steeredRows = []row{
		{bulk1, "one bulk stream"},
		{bulk1 + cpu, "its processor time, all of both hosts"},
		{ping64 + median, "64 bytes there and back"},
		{redisC50, "redis, 50 connections"},
		{rate8, "connect, request, close, 8 at a time"},
		{coldRate + median, "one such connection to a peer that is not known yet"},
		{besidePing + median, "64 bytes there and back beside one bulk stream"},
		{besidePing + p99, "the same, 99 %"},
		{besideRate, "connect, request, close beside one bulk stream"},
	}
	steeredColumns = []struct{ variant, title string }{
		{Shm, "shm"}, {Soft1500, "soft"}, {Auto, "rule `auto`"}, {TwoProxies, "two proxies"},
	}
)

// costRows are units of work, with the metrics for what they cost on both hosts in all, and in the gateways; empty if
// there is none.
var costRows = []struct{ title, machine, gateways string }{
	{"10⁹ bytes of one stream", bulk1 + cpu, bulk1 + gatewaysCPU},
	{"64 bytes there and back", "", ping64 + gatewaysCPU},
	{"connect, request, close", rate8 + cpu, rate8 + gatewaysCPU},
}

// idleRows are the parts of the memory of an idle connection.
var idleRows = []row{
	{idle + idleOwn, "heap (with garbage) and stacks, of each gateway"},
	{idle + idleShared, "rings and queue pairs, of both"},
	{idle + idleKernel, "objects of the kernel, on the whole machine: sockets"},
}

// front returns the generated part of the page.
func front(list []*comparison.Report) string {
	var b strings.Builder
	b.WriteString("\n× is the ratio to TCP of the same round: above 1 is better for rates, below 1 for times and processor time.\n")
	if r := having(list, func(r *comparison.Report) string { return versus(r, bulk1, InProcess) }); r != nil {
		fmt.Fprintf(&b, "\n## In process\n\nPrograms with the library on one host, against the same programs by plain TCP with %s.\n\n", r.Machine.CongestionControl)
		b.WriteString("| work | TCP, veth | in process, veth | in process, loopback |\n|---|---:|---:|---:|\n")
		for _, w := range promotedRows {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", w.title, value(r, w.metric, comparison.TCP), versus(r, w.metric, w.variant), versus(r, local+w.metric, w.variant))
		}
	}
	b.WriteString("\n## Steered\n\n")
	for _, r := range list {
		usually := ""
		if r.Machine.CongestionControl == Usual {
			usually = ", the Linux default"
		}
		fmt.Fprintf(&b, "- **%s**%s: one bulk stream over shared memory is %s TCP, over the soft device %s TCP.\n",
			r.Machine.CongestionControl, usually, versus(r, bulk1, Shm), versus(r, bulk1, Soft1500))
	}
	for _, r := range list {
		steered(&b, r)
	}
	gatewayCosts(&b, list)
	idleMemory(&b, list)
	b.WriteString("\n## Machines\n\n")
	for _, r := range list {
		fmt.Fprintf(&b, "- %s: %s\n", r.Machine.CongestionControl, strings.Join(r.Machine.Lines(), "; "))
	}
	return b.String() + "\n"
}

func steered(b *strings.Builder, r *comparison.Report) {
	fmt.Fprintf(b, "\n### With %s\n\n| work | TCP |", r.Machine.CongestionControl)
	for _, c := range steeredColumns {
		fmt.Fprintf(b, " %s |", c.title)
	}
	fmt.Fprintf(b, "\n|---|---:|%s\n", strings.Repeat("---:|", len(steeredColumns)))
	for _, w := range steeredRows {
		if len(r.Of(w.metric)) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %s |", w.title, value(r, w.metric, comparison.TCP))
		for _, c := range steeredColumns {
			fmt.Fprintf(b, " %s |", versus(r, w.metric, c.variant))
		}
		b.WriteString("\n")
	}
}

// gatewayCosts reports what gateways cost when the transport is free, and what follows for users of adapters.
func gatewayCosts(b *strings.Builder, list []*comparison.Report) {
	r := having(list, func(r *comparison.Report) string { return value(r, costRows[0].gateways, Shm) })
	if r == nil {
		return
	}
	fmt.Fprintf(b, `
## What the gateway costs

Over shared memory the transport is free: nothing but the gateways' copies moves the bytes. Processor time with %s.

| per | TCP, all of both hosts | shm, all of both hosts | of it the two gateways |
|---|---:|---:|---:|
`, r.Machine.CongestionControl)
	for _, c := range costRows {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.title, value(r, c.machine, comparison.TCP), value(r, c.machine, Shm), value(r, c.gateways, Shm))
	}
	fmt.Fprintf(b, `
An adapter can cost no less. On this machine it would pay for one stream where TCP between two hosts gives less than
%s and less than the adapter, or takes more than %s of both hosts together; for messages where TCP's
round trip is longer than %s and twice `+"`ib_write_lat`"+`; for connections that carry one request never
([ADAPTERS.md](ADAPTERS.md#what-to-expect)).
`, value(r, bulk1, Shm), value(r, bulk1+cpu, Shm), value(r, ping64+median, Shm))
}

func idleMemory(b *strings.Builder, list []*comparison.Report) {
	r := having(list, func(r *comparison.Report) string { return value(r, idleRows[0].metric, Shm) })
	if r == nil {
		return
	}
	b.WriteString("\n## What an idle connection has\n\n| KiB each | TCP | shm | soft |\n|---|---:|---:|---:|\n")
	for _, w := range idleRows {
		fmt.Fprintf(b, "| %s |", w.title)
		for _, variant := range []string{comparison.TCP, Shm, Soft1500} {
			text := value(r, w.metric, variant)
			if strings.HasPrefix(text, "-") { // the machine's memory also changes on its own
				text = none
			}
			fmt.Fprintf(b, " %s |", strings.TrimSuffix(text, " KiB each"))
		}
		b.WriteString("\n")
	}
}

// none is the cell of what was not measured.
const none = "–"

// having returns the first report in which a cell is not empty, or nil.
func having(list []*comparison.Report, cell func(*comparison.Report) string) *comparison.Report {
	i := slices.IndexFunc(list, func(r *comparison.Report) bool { return cell(r) != none })
	if i < 0 {
		return nil
	}
	return list[i]
}

// value returns the median of a metric with its unit.
func value(r *comparison.Report, metric, variant string) string {
	for _, s := range r.Of(metric) {
		if sp := s.Spread(); s.Variant == variant && sp.N > 0 {
			return comparison.Number(sp.Median) + " " + s.Unit
		}
	}
	return none
}

// versus returns a way's ratio to TCP, with its extremes if there is more than one round.
func versus(r *comparison.Report, metric, variant string) string {
	sp, ok := r.Ratio(metric, variant, comparison.TCP)
	switch {
	case !ok:
		return none
	case sp.N < 2:
		return fmt.Sprintf("%.2f ×", sp.Median)
	default:
		return fmt.Sprintf("%.2f (%.2f–%.2f) ×", sp.Median, sp.Min, sp.Max)
	}
}
