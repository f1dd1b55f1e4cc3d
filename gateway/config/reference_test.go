package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestReference: docs/reference/configuration.md is the table of fields.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Configuration fields\n\n" +
		"Generated from `gateway/config/fields.go` by `make docs`. `smcgw check -c FILE` prints the effective values and their origin.\n" +
		"The file is YAML, read strictly: an unknown field is an error with its line. Every field is optional. `[]` is an element of a list.\n\n" +
		"| field | default | meaning |\n|---|---|---|\n")
	for i, f := range configFields {
		if i+1 < len(configFields) && strings.HasPrefix(configFields[i+1].Path, f.Path+".") {
			continue // its fields tell
		}
		value := ""
		if f.Default != "" {
			value = "`" + f.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, value, f.Doc)
	}
	golden.Page(t, "docs/reference/configuration.md", b.String())
}
