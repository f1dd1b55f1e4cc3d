package config

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Percent is a part of something bounded. Its text form is a whole number with a percent
// sign: 50%.
type Percent int

// String renders the number with its sign.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// MarshalText renders the number as String does.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML parses a number with or without percent sign.
func (p *Percent) UnmarshalYAML(n *yaml.Node) error { return fromText(n, p.setText) }

// setText parses a number with or without percent sign.
func (p *Percent) setText(text string) error {
	v, err := strconv.ParseUint(strings.TrimSuffix(text, "%"), 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not a part such as 50%%", text)
	}
	*p = Percent(v)
	return nil
}

// Of returns that part of n, and at least 1.
func (p Percent) Of(n int) int { return max(1, int(int64(n)*int64(p)/100)) }
