package config

import (
	"errors"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"
)

// StallTimeout is how long a flow may make no progress although there is
// something to carry and room for it. Its zero value is "the default", so not at
// all has a value of its own.
type StallTimeout time.Duration

const (
	// NoStallTimeout is written as 0 in the file.
	NoStallTimeout StallTimeout = -1
	// minStallTimeout is more than a loaded machine and a lossy path need,
	// maxStallTimeout less than the patience of most applications.
	minStallTimeout = StallTimeout(time.Second)
	maxStallTimeout = StallTimeout(time.Hour)
)

// Duration returns the time, 0 when stalls are not looked for.
func (s StallTimeout) Duration() time.Duration { return max(time.Duration(s), 0) }

// String renders the time as the file has it.
func (s StallTimeout) String() string {
	if s.Duration() == 0 {
		return "0"
	}
	return shortDuration(s.Duration())
}

// MarshalText renders the time as String does.
func (s StallTimeout) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var errStallTimeout = errors.New("neither 0 nor a duration such as 60s")

// UnmarshalYAML reads 0 or a duration.
func (s *StallTimeout) UnmarshalYAML(n *yaml.Node) error { return fromText(n, s.setText) }

func (s *StallTimeout) setText(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0:
		return fmt.Errorf("%q: %w", text, errStallTimeout)
	case d == 0:
		*s = NoStallTimeout
	default:
		*s = StallTimeout(d)
	}
	return nil
}
