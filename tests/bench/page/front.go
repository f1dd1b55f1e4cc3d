package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
)

// shown are the works of the page's first table, and what a reader calls them.
var shown = []struct{ work, title string }{
	{bulk, "one bulk stream"},
	{bulkCPU, "its processor time, all of both hosts"},
	{ping, "64 bytes there and back"},
	{"redis -c50", "redis, 50 connections"},
	{connections, "connect, request, close, 8 at a time"},
	{"connections, cold peer, median", "one such connection to a peer that is not known yet"},
	{besidePing, "64 bytes there and back beside one bulk stream"},
	{besideP99, "the same, 99 %"},
	{"beside bulk: connections, 8 at a time", "connect, request, close beside one bulk stream"},
}

// columns are the ways of the first table.
var columns = []struct{ variant, title string }{
	{bench.Shm, "shm"}, {bench.Soft1500, "soft"}, {bench.Auto, "rule `auto`"}, {bench.TwoProxies, "two proxies"},
}

// promoted are the works of the table of programs with the library, and the way whose ratio a row has.
var promoted = []struct{ work, variant, title string }{
	{bulk, bench.InProcess, "one bulk stream"},
	{"bulk, 1 stream, CPU of the programs", bench.InProcess, "its processor time, of the programs"},
	{ping, bench.InProcess, "64 bytes there and back, median"},
	{"ping-pong 64 B, 99 %", bench.InProcess, "the same, 99 %"},
	{ping, bench.InProcessSpin, "the same with spin, median"},
	{"redis -c1", bench.InProcess, "redis -c1"},
	{"redis -c50", bench.InProcess, "redis -c50"},
	{"redis -c50, CPU of the programs", bench.InProcess, "its processor time, of the programs"},
	{"redis -c50 -P16", bench.InProcess, "redis -c50 -P16"},
	{"nginx, 1 KiB, 16 connections kept", bench.InProcess, "nginx, 1 KiB, 16 connections"},
	{"nginx, 1 MiB, 4 connections kept", bench.InProcess, "nginx, 1 MiB, 4 connections"},
	{"nginx, a connection per request", bench.InProcess, "nginx, a connection a request: none promoted"},
	{besideP99, bench.InProcess, "64 bytes beside one bulk stream, 99 %"},
}

// loopback begins the names of works between programs of one host.
const loopback = "loopback: "

// inProcess is the table of programs with the library, of the first summary that has it.
func inProcess(list []*summary) string {
	i := slices.IndexFunc(list, func(s *summary) bool { return versus(s, bulk, bench.InProcess) != "–" })
	if i < 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n## In process\n\nPrograms with the library on one host, against the same programs by plain TCP with %s.\n\n", list[i].congestion())
	b.WriteString("| work | TCP, veth | in process, veth | in process, loopback |\n|---|---:|---:|---:|\n")
	for _, w := range promoted {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", w.title, absolute(list[i], w.work), versus(list[i], w.work, w.variant), versus(list[i], loopback+w.work, w.variant))
	}
	return b.String()
}

// front is the generated part of the page.
func front(list []*summary) string {
	var b strings.Builder
	b.WriteString("\n× is the ratio to TCP of the same round: above 1 is better for rates, below 1 for times and processor time.\n")
	b.WriteString(inProcess(list) + "\n## Steered\n\n")
	for _, s := range list {
		b.WriteString(sentence(s))
	}
	for _, s := range list {
		fmt.Fprintf(&b, "\n### With %s\n\n%s", s.congestion(), firstTable(s))
	}
	b.WriteString(costs(list) + memory(list))
	b.WriteString("\n## Machines\n\n")
	for _, s := range list {
		fmt.Fprintf(&b, "- %s: %s\n", s.congestion(), strings.Join(s.Machine.Lines(), "; "))
	}
	return b.String() + "\n"
}

// sentence is the first thing that a reader wants to know.
func sentence(s *summary) string {
	ratio := func(variant string) string {
		if f := s.figure(bulk, variant); f != nil {
			if sp, ok := f.Ratios[comparison.TCP]; ok {
				return fmt.Sprintf("%.2f × TCP", sp.Median)
			}
		}
		return "not measured"
	}
	usually := ""
	if s.congestion() == usual {
		usually = ", the Linux default"
	}
	return fmt.Sprintf("- **%s**%s: one bulk stream over shared memory is %s, over the soft device %s.\n",
		s.congestion(), usually, ratio(bench.Shm), ratio(bench.Soft1500))
}

// firstTable has what programs get with one congestion control.
func firstTable(s *summary) string {
	var b strings.Builder
	b.WriteString("| work | TCP |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	fmt.Fprintf(&b, "\n|---|---:|%s\n", strings.Repeat("---:|", len(columns)))
	for _, w := range shown {
		if !slices.ContainsFunc(s.Figures, func(f figure) bool { return f.Work == w.work }) {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s |", w.title, absolute(s, w.work))
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", versus(s, w.work, c.variant))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// absolute is what TCP does.
func absolute(s *summary, work string) string {
	f := s.figure(work, comparison.TCP)
	if f == nil || f.Value == nil {
		return "–"
	}
	return comparison.Number(f.Value.Median) + " " + f.Unit
}

// versus is a way's ratio to TCP.
func versus(s *summary, work, variant string) string {
	if f := s.figure(work, variant); f != nil {
		if sp, ok := f.Ratios[comparison.TCP]; ok {
			return sp.String() + " ×"
		}
	}
	return "–"
}
