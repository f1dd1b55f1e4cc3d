package page

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// The maximum length of each list on the page.
const (
	mostReasons = 12
	mostPeers   = 20
	mostConns   = 10
)

// View is what the template renders.
type View struct {
	About
	Style     template.CSS
	Script    template.JS
	RuleCount int
	At        time.Time
	Status    report.Status
	State     State
	Problems  []Problem

	Moved    string // what was moved without TCP
	Tiles    []Tile
	Carriers []CarrierRow
	Native   []ReasonRow
	Ends     []ReasonRow
	Peers    []report.PeerInfo
	Devices  []report.DeviceInfo
	Memory   []Meter
	Busy     []ConnRow
	Ended    []ConnRow
	Kept     time.Duration // how far the samples reach back

	MorePeers, MoreConns int // not shown
}

// State is the headline: a class in the style sheet and a word.
type State struct{ Class, Word string }

// Problem is something that operators should look at.
type Problem struct{ Class, Title, Text, Fix string }

// Tile is a number with its recent history.
type Tile struct {
	Title, Value, Note string
	Peak               string // the maximum of the time shown; empty: 0
	Spark              Spark
}

// CarrierRow describes what one carrier does.
type CarrierRow struct {
	Name      report.Carrier
	Flows     int
	Begun     uint64
	Now       Rates
	Total     report.ByteCount
	Spark     Spark
	Available bool
}

// Rates are bytes per second.
type Rates struct{ Tx, Rx float64 }

// ReasonRow counts connections for one reason.
type ReasonRow struct {
	Name, Meaning, By string
	Recent, Total     uint64
	Class             string
}

// Meter shows how full something is.
type Meter struct {
	Name, Text string
	Part       float64 // from 0 to 1
	Class      string
}

// ConnRow is a connection with its average rate.
type ConnRow struct {
	report.ConnInfo
	From, To string
	How      string // its carrier, or that it is in process; empty: neither
	Bytes    uint64
	Rate     float64
}

func (p *Page) view(now time.Time) View {
	snap, past := p.src.Snapshot(), p.past.list()
	if n := len(past); n > 1 && now.Sub(past[n-1].at) < sampleEvery/2 {
		past = past[:n-1] // a rate over such a short time says little
	}
	past = append(past, newSample(&snap, now))
	v := View{About: p.about, Style: template.CSS(pageCSS), Script: template.JS(pageJS), At: now, Status: p.src.Status(), Kept: past[len(past)-1].at.Sub(past[0].at).Round(time.Second)}
	v.Status.Draining = p.src.Draining()
	if p.about.Rules != nil {
		v.RuleCount = p.about.Rules()
	}
	v.State, v.Problems = health(&snap, v.Status, now)
	v.Moved = moved(&snap)
	v.Tiles = tiles(&snap, past)
	v.Carriers = carriers(&snap, past)
	v.Native, v.Ends = natives(past), ends(past)
	v.Peers = p.src.Peers()
	slices.SortStableFunc(v.Peers, func(a, b report.PeerInfo) int { return b.Flows - a.Flows })
	v.Peers, v.MorePeers = most(v.Peers, mostPeers)
	v.Devices = snap.Devices
	v.Memory = meters(&snap)
	live := slices.DeleteFunc(connRows(p.src.Conns(report.ConnQuery{})), func(c ConnRow) bool { return c.How == "" })
	slices.SortStableFunc(live, func(a, b ConnRow) int { return cmp.Compare(b.Bytes, a.Bytes) })
	v.Busy, v.MoreConns = most(live, mostConns)
	v.Ended, _ = most(connRows(p.src.Conns(report.ConnQuery{Closed: true})), mostConns)
	return v
}

func most[T any](list []T, n int) (shown []T, more int) {
	if len(list) <= n {
		return list, 0
	}
	return list[:n], len(list) - n
}

// late is the age of the heartbeat at which the page says that new connections are native.
const late = 3 * time.Second

// health returns the state of the gateway and its problems, worst first.
func health(s *report.Snapshot, st report.Status, now time.Time) (State, []Problem) {
	state, problems := State{"good", "healthy"}, []Problem(nil)
	add := func(class, word string, p Problem) {
		if len(problems) == 0 {
			state = State{class, word}
		}
		p.Class = class
		problems = append(problems, p)
	}
	if s.Heartbeat.IsZero() || now.Sub(s.Heartbeat) > late {
		add("bad", "silent", Problem{Title: "The datapath does not beat", Text: "New connections are native.", Fix: "Look for a lack of processor time, and at the log."})
	}
	if d := st.Draining; d != nil {
		add("warn", "draining", Problem{
			Title: "The gateway drains", Text: fmt.Sprintf("New connections are native. %d connections are left; they are reset in %s.", d.Flows+d.Lingering, age(d.RemainingSeconds)),
		})
	}
	for _, name := range st.Degraded {
		p := Problem{Title: "Degraded: " + name}
		if code, ok := report.CodeNamed(name); ok {
			p.Text, p.Fix = code.Meaning, code.Fix
		}
		add("warn", "degraded", p)
	}
	switch s.Mode {
	case report.ModeOff:
		add("off", "off", Problem{Title: "Switched off", Text: "New connections are native; carried ones go on, those in process by the kernel.", Fix: "smcgw on"})
	case report.ModeObserve:
		add("off", "observing", Problem{Title: "Mode observe", Text: "Rules are evaluated and counted; nothing is carried.", Fix: "mode: enforce"})
	case report.ModeEnforce:
	}
	for _, l := range st.BlockedLegs {
		where := l.At
		if l.Device != "" {
			where = l.Device + " " + l.Family + ": " + l.At
		}
		add("warn", "degraded", Problem{Title: "Legs blocked", Text: where, Fix: "smcgw status names what to look for."})
	}
	for _, note := range st.Notes {
		add("note", state.Word, Problem{Title: "Note", Text: note})
	}
	if st.LogDropped > 0 {
		add("note", state.Word, Problem{Title: "Log", Text: count(st.LogDropped) + " lines could not be written."})
	}
	if len(problems) > 0 && problems[0].Class == "note" {
		state = State{"good", "healthy"}
	}
	return state, problems
}

// allBytes returns the bytes of all carriers, in both directions.
func allBytes(s sample) (n uint64) {
	for _, b := range s.bytes {
		n += b.Tx + b.Rx
	}
	return n
}

func sum[K comparable](counts map[K]uint64, which func(K) bool) (n uint64) {
	for k, c := range counts {
		if which(k) {
			n += c
		}
	}
	return n
}

// isReset reports whether an end was neither in order nor an application's reset.
func isReset(k endKey) bool { return k.reason != string(report.EndClosed) && k.reason != "app_reset" }

func every[K any](K) bool { return true }

// moved describes what shared memory and RDMA have moved instead of TCP since the start.
func moved(s *report.Snapshot) string {
	bytes, conns, native := s.InProcess.RingBytesTotal, s.InProcess.ConnectionsTotal, uint64(0)
	for c, n := range s.BytesTotal {
		if c != report.CarrierRelay { // the relay is TCP
			bytes += n.Tx + n.Rx
		}
	}
	for _, n := range s.FlowsTotal {
		conns += n
	}
	for _, f := range s.Fallbacks {
		native += f.Count
	}
	if bytes == 0 {
		return "Nothing has gone by shared memory or RDMA since the start."
	}
	return fmt.Sprintf("Since the start %s of %s went by shared memory or RDMA instead of TCP; %s stayed native.", size(bytes), plural(conns, "connection"), count(native))
}

func tiles(s *report.Snapshot, past []sample) []Tile {
	first, now := past[0], past[len(past)-1]
	tile := func(title, value, note, class string, list []float64, format func(float64) string) Tile {
		t := Tile{Title: title, Value: value, Note: note, Spark: newSpark(title, map[string][]float64{class: list}, class)}
		if t.Spark.Most > 0 {
			t.Peak = format(t.Spark.Most)
		}
		return t
	}
	number := func(v float64) string { return count(v) }
	perSecond := func(v float64) string { return count(v) + "/s" }
	flows := values(past, func(s sample) float64 { return float64(s.flows) })
	bytes := rates(past, allBytes)
	begun := rates(past, func(s sample) uint64 { return s.begun })
	native := rates(past, func(s sample) uint64 { return sum(s.native, every[string]) })
	resets := rates(past, func(s sample) uint64 { return sum(s.ended, isReset) })
	memory := values(past, func(s sample) float64 { return float64(s.memory) })
	reset := sum(now.ended, isReset) - min(sum(now.ended, isReset), sum(first.ended, isReset))
	datagrams := 0
	for _, n := range s.UDP.Flows {
		datagrams += n.Now
	}
	note := "of " + count(s.Bounds.Flows) + " at most"
	if datagrams > 0 {
		note += ", and " + count(datagrams) + " UDP pairs"
	}
	list := []Tile{
		tile("Carried now", count(now.flows), note, "main", flows, number),
		tile("Throughput", rate(last(bytes)), "application bytes, both directions", "main", bytes, rate),
		tile("New, carried", count(last(begun))+"/s", count(now.begun)+" since the start", "main", begun, perSecond),
		tile("New, native", count(last(native))+"/s", count(sum(now.native, every[string]))+" since the start", "quiet", native, perSecond),
		tile("Reset", count(reset), "not by applications, in the last "+age(now.at.Sub(first.at).Seconds()), "bad", resets, perSecond),
		tile("Memory", size(now.memory), "of "+size(s.MemoryLimit), "quiet", memory, sizeOf),
	}
	if p := s.InProcess; p.Enabled {
		note := count(p.ConnectionsTotal) + " since the start, " + size(p.RingBytesTotal) + " by rings"
		if !p.Serving {
			note = "not served: " + p.Note
		} else if p.Predicted > 0 {
			note += ", " + count(p.Predicted) + " would have been"
		}
		list = append(list, tile("In process now", count(p.Connections), note, "main", values(past, func(s sample) float64 { return float64(s.inProcess) }), number))
	}
	return list
}

func carriers(s *report.Snapshot, past []sample) (rows []CarrierRow) {
	for _, c := range report.Carriers() {
		tx := rates(past, func(s sample) uint64 { return s.bytes[c].Tx })
		rx := rates(past, func(s sample) uint64 { return s.bytes[c].Rx })
		row := CarrierRow{
			Name: c, Flows: s.Flows[c], Begun: s.FlowsTotal[c], Total: s.BytesTotal[c], Now: Rates{last(tx), last(rx)},
			Spark: newSpark("throughput of "+string(c), map[string][]float64{"tx": tx, "rx": rx}, "rx", "tx"),
		}
		row.Available = c == report.CarrierRelay || slices.ContainsFunc(s.Devices, func(d report.DeviceInfo) bool {
			return d.Carrier == c && d.State == report.DeviceActive
		})
		if row.Available || row.Begun > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

func natives(past []sample) []ReasonRow {
	first, now := past[0], past[len(past)-1]
	var rows []ReasonRow
	for reason, n := range now.native {
		rows = append(rows, newReason(reason, "", n, first.native[reason]))
	}
	return ordered(rows)
}

func ends(past []sample) []ReasonRow {
	first, now := past[0], past[len(past)-1]
	var rows []ReasonRow
	for k, n := range now.ended {
		if n == 0 {
			continue
		}
		row := newReason(k.reason, k.decidedBy, n, first.ended[k])
		if isReset(k) {
			row.Class = "bad"
		}
		rows = append(rows, row)
	}
	return ordered(rows)
}

func newReason(name, by string, now, before uint64) ReasonRow {
	row := ReasonRow{Name: name, By: by, Total: now, Recent: now - min(now, before)}
	if code, ok := report.CodeNamed(name); ok {
		row.Meaning = code.Meaning
	} else if name == string(report.EndClosed) {
		row.Meaning = "Both applications ended in order."
	}
	return row
}

// ordered sorts the rows, those with the most recent connections first, and limits their
// number.
func ordered(rows []ReasonRow) []ReasonRow {
	slices.SortFunc(rows, func(a, b ReasonRow) int {
		return cmp.Or(cmp.Compare(b.Recent, a.Recent), cmp.Compare(b.Total, a.Total), strings.Compare(a.Name+a.By, b.Name+b.By))
	})
	rows, _ = most(rows, mostReasons)
	return rows
}

// meters returns what is bounded, and how full it is.
func meters(s *report.Snapshot) []Meter {
	meter := func(name string, now, limit uint64, text string) Meter {
		m := Meter{Name: name, Text: text}
		if limit > 0 {
			m.Part = min(1, float64(now)/float64(limit))
		}
		switch {
		case m.Part > 0.9:
			m.Class = "bad"
		case m.Part > 0.7:
			m.Class = "warn"
		}
		return m
	}
	list := []Meter{
		meter("memory reserved", s.Memory["reserved"], s.MemoryLimit, size(s.Memory["reserved"])+" of "+size(s.MemoryLimit)),
		meter("memory in use", s.Memory["used"], s.MemoryLimit, size(s.Memory["used"])),
	}
	if q := s.Memory["quarantined"]; q > 0 {
		list = append(list, meter("memory in quarantine", q, s.MemoryLimit, size(q)))
	}
	for _, m := range s.Maps { // only those that may soon keep connections native
		if full := meter("eBPF map "+m.Map, m.Entries, m.Capacity, count(m.Entries)+" of "+count(m.Capacity)); full.Class != "" {
			list = append(list, full)
		}
	}
	return list
}

// connRows returns connections in the direction in which they began. A connection in process,
// of which both ends are listed, is returned once.
func connRows(list []report.ConnInfo) []ConnRow {
	var rows []ConnRow
	seen := map[uint64]bool{}
	for _, c := range list {
		row := ConnRow{ConnInfo: c, From: c.Local.String(), To: c.Remote.String(), How: string(c.Carrier), Bytes: c.TxBytes + c.RxBytes}
		if c.InProcess != nil {
			if c.Way != report.WayInProcess || seen[c.InProcess.Conn] {
				continue
			}
			row.How, seen[c.InProcess.Conn] = "in process", true
		}
		if c.Side == report.SideServer {
			row.From, row.To = row.To, row.From
		}
		if c.AgeSeconds > 0 {
			row.Rate = float64(row.Bytes) / c.AgeSeconds
		}
		rows = append(rows, row)
	}
	return rows
}
