package comparison

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Schema is the version of the JSON document.
const Schema = "smcgw.bench/v1"

// TCP is the variant with which everything else is compared: the same programs on the same hosts without smcgw.
const TCP = "tcp"

// Better says in which direction the values of a series are better.
type Better int

// The directions. Rates are better when higher, times and costs when lower.
const (
	More Better = iota
	Less
)

// String returns "more" or "less".
func (b Better) String() string {
	if b == Less {
		return "less"
	}
	return "more"
}

// Series is one work done in one way: one value per round.
type Series struct {
	// Work says what was done, such as "bulk, 1 stream". All series of one work have the same unit and direction.
	Work string
	// Variant says how it was done, such as [TCP] or "shm".
	Variant string
	// Unit is the unit of the values, such as "MB/s" or "µs".
	Unit string
	// Better is the direction in which values are better.
	Better Better
	// Values has the value of each round, in the order of the rounds; NaN for a round that failed. It is empty if the
	// work could not be done in this way at all; Note then says why.
	Values []float64
	// Note is what a reader must know about this row, such as "fallback: peer_no_option" or "not installed". It may be
	// empty.
	Note string
}

// Machine describes where a report was made.
type Machine struct {
	// CPU is the model of the processor, CPUs the number of processors in use.
	CPU  string `json:"cpu"`
	CPUs int    `json:"cpus"`
	// Kernel is the kernel release, Arch the architecture in Go's terms, and GoVersion the version of the compiler.
	Kernel    string `json:"kernel"`
	Arch      string `json:"arch"`
	GoVersion string `json:"go_version"`
	// CongestionControl is that of TCP in every variant.
	CongestionControl string `json:"congestion_control"`
	// Load1 is the load average of the minute before the first round. It shows how quiet the machine was.
	Load1 float64 `json:"load1"`
	// Time is when the first round began.
	Time time.Time `json:"time"`
}

// Report is a whole comparison.
type Report struct {
	// Schema is the version of the JSON document; empty means [Schema].
	Schema string `json:"schema"`
	// Machine is where it was made.
	Machine Machine `json:"machine"`
	// Commands are the command lines that reproduce the report.
	Commands []string `json:"commands"`
	// Rounds is the requested number of rounds.
	Rounds int `json:"rounds"`
	// Series are the results. Works and variants are printed in the order of
	// their first appearance.
	Series []Series `json:"series"`
	// Notes are remarks about the whole report.
	Notes []string `json:"notes"`
}

// Works returns the works in the order of their first appearance.
func (r *Report) Works() (works []string) {
	for _, s := range r.Series {
		if !slices.Contains(works, s.Work) {
			works = append(works, s.Work)
		}
	}
	return works
}

// Of returns the series of one work.
func (r *Report) Of(work string) (list []Series) {
	for _, s := range r.Series {
		if s.Work == work {
			list = append(list, s)
		}
	}
	return list
}

// Absent returns a series of each variant that has no value for any work, always for the same reason.
func (r *Report) Absent() (list []Series) {
	for i, s := range r.Series {
		first := slices.IndexFunc(r.Series, func(o Series) bool { return o.Variant == s.Variant }) == i
		differs := func(o Series) bool { return o.Variant == s.Variant && (len(o.Values) > 0 || o.Note != s.Note) }
		if first && s.Variant != TCP && s.Note != "" && !slices.ContainsFunc(r.Series, differs) {
			list = append(list, s)
		}
	}
	return list
}

// find returns the first series of a work and variant.
func (r *Report) find(work, variant string) (Series, bool) {
	i := slices.IndexFunc(r.Series, func(s Series) bool { return s.Work == work && s.Variant == variant })
	if i < 0 {
		return Series{}, false
	}
	return r.Series[i], true
}

// ThisMachine describes the machine as it is now. What cannot be determined remains empty. An empty congestion control
// means the system's default.
func ThisMachine(congestionControl string) Machine {
	m := Machine{
		CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, GoVersion: runtime.Version(),
		CongestionControl: congestionControl, Time: time.Now().Round(0),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.CPU = cpuModel(text("/proc/cpuinfo"))
	first, _, _ := strings.Cut(text("/proc/loadavg"), " ")
	m.Load1, _ = strconv.ParseFloat(first, 64) // 0 if unknown
	if m.CongestionControl == "" {
		m.CongestionControl = strings.TrimSpace(text("/proc/sys/net/ipv4/tcp_congestion_control"))
	}
	return m
}

// text returns the contents of a kernel file, or "" if it cannot be read.
func text(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(b)
}

// cpuModel returns the model of the first processor.
func cpuModel(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// seriesJSON is a series in the document. Spread is derived from the values, for readers that only want that; it is not
// read back.
type seriesJSON struct {
	Work    string      `json:"work"`
	Variant string      `json:"variant"`
	Unit    string      `json:"unit"`
	Better  string      `json:"better"`
	Values  []*float64  `json:"values"`
	Spread  *spreadJSON `json:"spread,omitempty"`
	Note    string      `json:"note,omitempty"`
}

type spreadJSON struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// MarshalJSON encodes a round that failed as null, since JSON has no NaN.
func (s Series) MarshalJSON() ([]byte, error) {
	doc := seriesJSON{Work: s.Work, Variant: s.Variant, Unit: s.Unit, Better: s.Better.String(), Values: []*float64{}, Note: s.Note}
	for _, v := range s.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			doc.Values = append(doc.Values, nil)
			continue
		}
		doc.Values = append(doc.Values, &v)
	}
	if sp := s.Spread(); sp.N > 0 {
		doc.Spread = &spreadJSON{sp.Median, sp.Min, sp.Max, sp.N}
	}
	return json.Marshal(doc)
}

// UnmarshalJSON decodes what MarshalJSON has encoded.
func (s *Series) UnmarshalJSON(b []byte) error {
	var doc seriesJSON
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	*s = Series{Work: doc.Work, Variant: doc.Variant, Unit: doc.Unit, Note: doc.Note}
	switch doc.Better {
	case More.String():
	case Less.String():
		s.Better = Less
	default:
		return fmt.Errorf("series %q %q: better is %q, neither more nor less", doc.Work, doc.Variant, doc.Better)
	}
	for _, v := range doc.Values {
		if v == nil {
			s.Values = append(s.Values, math.NaN())
			continue
		}
		s.Values = append(s.Values, *v)
	}
	return nil
}

// JSON writes the report as one document on one line. All fields are present: the schema, and lists even if they are
// empty.
func (r *Report) JSON(w io.Writer) error {
	doc := *r
	if doc.Schema == "" {
		doc.Schema = Schema
	}
	doc.Commands, doc.Notes = append([]string{}, r.Commands...), append([]string{}, r.Notes...)
	doc.Series = append([]Series{}, r.Series...)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&doc); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
