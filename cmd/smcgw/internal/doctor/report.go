package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// Schema names the format of Report.
const Schema = "smcgw.doctor/v1"

// State is the verdict of a line.
type State string

// The states: ok, a warning about something that costs speed or leaves some connections native, and a failure that
// keeps the gateway from working.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failure State = "failure"
)

// Line is one finding.
type Line struct {
	// Check is the name of the check, which never changes.
	Check string `json:"check"`
	State State  `json:"state"`
	// Text is what was found, Remedy what to do; a line that is ok has no remedy.
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

// Report is the document of doctor.
type Report struct {
	Schema   string `json:"schema"`
	Failures int    `json:"failures"`
	Warnings int    `json:"warnings"`
	Lines    []Line `json:"lines"`
}

// Text prints the report for people: a line per finding, with its remedy below. wrap breaks a text that begins at a
// column into lines; nil: texts are not broken.
func (r *Report) Text(w io.Writer, wrap func(text string, column int) string) error {
	if wrap == nil {
		wrap = func(text string, _ int) string { return text }
	}
	const column = 23
	var b strings.Builder
	for _, l := range r.Lines {
		fmt.Fprintf(&b, "%-7s  %-12s  %s\n", l.State, l.Check, wrap(l.Text, column))
		if l.Remedy != "" {
			fmt.Fprintf(&b, "%*s> %s\n", column, "", wrap(l.Remedy, column+2))
		}
	}
	fmt.Fprintf(&b, "%s, %s\n", counted(r.Failures, "failure"), counted(r.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// counted renders a number of things: "1 failure", "2 failures".
func counted(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// add appends the lines of a check.
func (r *Report) add(check string, lines []Line) {
	for _, l := range lines {
		l.Check = check
		switch l.State {
		case Failure:
			r.Failures++
		case Warning:
			r.Warnings++
		case OK:
		}
		r.Lines = append(r.Lines, l)
	}
}

// ok returns a line without a remedy.
func ok(format string, args ...any) Line {
	return Line{State: OK, Text: fmt.Sprintf(format, args...)}
}

// warning returns a warning with a remedy.
func warning(remedy, format string, args ...any) Line {
	return Line{State: Warning, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

func failure(remedy, format string, args ...any) Line {
	return Line{State: Failure, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

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
