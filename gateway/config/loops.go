package config

import (
	"fmt"
	"strings"
	"time"
)

// MaxShards is the number of event loops that every kind of device can serve: soft encodes
// the loop of a queue pair in four bits of its number.
const MaxShards = 16

// Loops returns the number of event loops on a host with this many processors. It is at most
// MaxShards, since with more, soft would be left out.
func (c Config) Loops(processors int) int {
	if c.Shards > 0 {
		return c.Shards
	}
	return min(max(1, processors/2), MaxShards)
}

// Spin is how long a waiting program polls its rings before it sleeps. Its zero value means
// "the default", so "none" has a value of its own.
type Spin time.Duration

const (
	// NoSpin is written as off in the file.
	NoSpin Spin = -1
	// maxSpin bounds Spin: a longer spin would take the processor from the program whose
	// answer is awaited.
	maxSpin = Spin(100 * time.Microsecond)
)

// Duration returns the time, or 0 if a program sleeps at once.
func (s Spin) Duration() time.Duration { return max(time.Duration(s), 0) }

// String renders the time as in the file.
func (s Spin) String() string {
	if s.Duration() == 0 {
		return "off"
	}
	return strings.Replace(s.Duration().String(), "µ", "u", 1)
}

// MarshalText renders the time as String does.
func (s Spin) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Spin) setText(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case text == "off" || err == nil && d == 0:
		*s = NoSpin
	case err != nil || d < 0:
		return fmt.Errorf("%q is neither off nor a duration such as 20us", text)
	default:
		*s = Spin(d)
	}
	return nil
}
