package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/smcgw/smcgw/inprocess/scan"
)

// ProgramSchema names the format of Program.
const ProgramSchema = "smcgw.program/v1"

// The answers of Program.
const (
	Promotable = "promotable"
	Native     = "native"
)

// Program describes what would happen to the connections of a program with the library.
type Program struct {
	Schema string `json:"schema"`
	// Answer is Promotable or Native; the other fields explain it.
	Answer string `json:"answer"`
	// Library is the file that would be loaded, empty if there is none for it here.
	Library string `json:"library,omitempty"`
	// Path is the program that was asked about; the result names another if it is a script.
	Path string `json:"path"`
	scan.Result
	Why   []Explained `json:"why"`
	Hints []string    `json:"hints"`
}

// Explained is a reason in words.
type Explained struct {
	Reason  scan.Reason `json:"reason"`
	Meaning string      `json:"meaning"`
}

// ExamineProgram explains the result of a scan of the program at path. library is the file for the program's libc,
// empty if there is none.
func ExamineProgram(path string, r *scan.Result, library string) Program {
	p := Program{Schema: ProgramSchema, Answer: Promotable, Path: path, Result: *r, Why: []Explained{}, Hints: []string{}}
	if !r.Promotable() {
		p.Answer = Native
	}
	for _, reason := range r.Reasons {
		p.Why = append(p.Why, Explained{reason, reason.Meaning()})
	}
	if p.loads() {
		p.Library = library
		if library == "" {
			p.Hints = append(p.Hints, "libsmcgw is not installed here for its libc: see IN-PROCESS.md of the documents")
		}
	}
	if path != r.Program {
		p.Hints = append(p.Hints, "it is a script of "+r.Program+", of which this is the answer; what the script starts is not looked at")
	}
	for _, reason := range r.Reasons {
		if hint := hintFor(reason); hint != "" {
			p.Hints = append(p.Hints, hint)
		}
	}
	if r.Promotable() {
		p.Hints = append(p.Hints, "libraries that it loads while it runs are looked at when it makes its next connection")
	}
	return p
}

// loads reports whether the loader would load the library, even where that has no effect.
func (p *Program) loads() bool {
	for _, r := range p.Reasons {
		switch r {
		case scan.Static, scan.OtherArch, scan.OtherLibc, scan.NotELF, scan.Malformed, scan.Setuid:
			return false
		case scan.GoRuntime, scan.RawCalls, scan.IOUring, scan.Missing, scan.Unreadable: // loaded, but without effect
		}
	}
	return true
}

// hintFor returns what could be done about a reason, or "".
func hintFor(r scan.Reason) string {
	switch r {
	case scan.Static:
		return "link it dynamically, if there is such a build"
	case scan.IOUring:
		return "many programs can be told to use epoll instead of io_uring"
	case scan.GoRuntime, scan.RawCalls:
		return "between hosts its connections can be carried all the same: see OPERATIONS.md of the documents"
	case scan.Setuid:
		return "start it by a service manager that gives it the rights, instead of its file"
	default:
		return ""
	}
}

// Text prints the answer for people.
func (p *Program) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", p.Path, p.Answer)
	var facts []string
	if p.Arch != "" {
		facts = append(facts, string(p.Arch))
	}
	if p.Libc != "" {
		facts = append(facts, string(p.Libc))
	}
	facts = append(facts, counted(p.Scanned, "file")+" looked at")
	fmt.Fprintf(&b, " (%s)\n", strings.Join(facts, ", "))
	if p.Library != "" {
		fmt.Fprintf(&b, "  library: %s\n", p.Library)
	}
	for _, why := range p.Why {
		fmt.Fprintf(&b, "  %s: %s\n", why.Reason, why.Meaning)
	}
	for _, m := range p.Missing {
		fmt.Fprintf(&b, "    not found: %s\n", m)
	}
	for _, o := range p.Objects {
		fmt.Fprintf(&b, "    %s", o.Path)
		if o.Counted > 0 {
			fmt.Fprintf(&b, ": %s that may touch a socket", counted(o.Counted, "system call"))
		}
		b.WriteString("\n")
		const shown = 4
		for i, s := range o.Sites {
			if i == shown {
				fmt.Fprintf(&b, "      and %d more\n", o.Counted-shown)
				break
			}
			fmt.Fprintf(&b, "      at %#x", s.Offset)
			if s.Symbol != "" {
				fmt.Fprintf(&b, " in %s", s.Symbol)
			}
			if s.Number != nil {
				fmt.Fprintf(&b, ": %s (%d)", s.Call, *s.Number)
			} else {
				b.WriteString(": of a number that is no constant")
			}
			b.WriteString("\n")
		}
	}
	for _, h := range p.Hints {
		fmt.Fprintf(&b, "  > %s\n", h)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
