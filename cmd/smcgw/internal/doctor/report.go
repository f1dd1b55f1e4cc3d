package doctor

import (
	"fmt"
	"io"
	"strings"
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
