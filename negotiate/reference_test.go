package negotiate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestReference: docs/reference/reasons.md is the table of reasons.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Reasons\n\n" +
		"Generated from `negotiate/reason_text.go` by `make docs`. `smcgw codes NAME` also says what to do.\n\n" +
		"A reason says why a connection is native, or how a carried one ended. It is one byte in DECLINE and ABORT. Numbers and names\n" +
		"never change; an unknown number is passed on as it is. 1–19 are decided on this host before the SYN leaves, 20–29 come from the\n" +
		"path or the SYN-ACK, 30–49 from the negotiation or a limit, 50–59 are learned, 60 and more are ends of carried connections.\n\n" +
		"| number | name | meaning |\n|---:|---|---|\n")
	for _, r := range Reasons() {
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", r, r, r.Meaning())
	}
	golden.Page(t, "docs/reference/reasons.md", b.String())
}
