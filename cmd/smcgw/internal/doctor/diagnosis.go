package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// DiagnosisSchema names the format of Diagnosis.
const DiagnosisSchema = "smcgw.diagnosis/v1"

// Diagnosis summarizes what stands out: findings that are not ok, and why connections were native or aborted recently.
type Diagnosis struct {
	Schema   string  `json:"schema"`
	Findings []Line  `json:"findings"`
	Native   []Cause `json:"native"`
	Aborted  []Cause `json:"aborted"`
}

// Cause is a reason, and how many recent connections had it.
type Cause struct {
	Reason    string `json:"reason"`
	DecidedBy string `json:"decided_by,omitempty"`
	Count     int    `json:"count"`
	Meaning   string `json:"meaning"`
	Remedy    string `json:"remedy"`
}

// Diagnose summarizes a report, and the recent connections that stayed native or have ended.
func Diagnose(r Report, native, ended []report.ConnInfo) Diagnosis {
	d := Diagnosis{Schema: DiagnosisSchema, Findings: []Line{}}
	for _, l := range r.Lines {
		if l.State != OK {
			d.Findings = append(d.Findings, l)
		}
	}
	d.Native, d.Aborted = causes(native, report.EndNative), causes(ended, report.EndAborted)
	return d
}

// causes counts the reasons of connections with an end, the most frequent first.
func causes(conns []report.ConnInfo, end report.End) []Cause {
	list := []Cause{}
	for _, c := range conns {
		if c.End != end || c.Reason == "" {
			continue
		}
		i := slices.IndexFunc(list, func(k Cause) bool { return k.Reason == c.Reason && k.DecidedBy == c.DecidedBy })
		if i < 0 {
			k := Cause{Reason: c.Reason, DecidedBy: c.DecidedBy}
			k.Meaning, k.Remedy = explained(c.Reason)
			list, i = append(list, k), len(list)
		}
		list[i].Count++
	}
	slices.SortStableFunc(list, func(a, b Cause) int { return cmp.Compare(b.Count, a.Count) })
	return list
}

// Text prints the diagnosis for people.
func (d *Diagnosis) Text(w io.Writer) error {
	var b strings.Builder
	for _, l := range d.Findings {
		fmt.Fprintf(&b, "%s: %s: %s\n  > %s\n", l.State, l.Check, l.Text, l.Remedy)
	}
	for _, part := range []struct {
		what string
		list []Cause
	}{{"native", d.Native}, {"aborted", d.Aborted}} {
		for _, c := range part.list {
			fmt.Fprintf(&b, "%s of late, %s: %s", counted(c.Count, "connection"), part.what, c.Reason)
			if c.DecidedBy != "" {
				fmt.Fprintf(&b, "(%s)", c.DecidedBy)
			}
			fmt.Fprintf(&b, ": %s\n  > %s\n", c.Meaning, c.Remedy)
		}
	}
	if b.Len() == 0 {
		b.WriteString("nothing stands out\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
