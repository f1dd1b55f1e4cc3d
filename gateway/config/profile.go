package config

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Profile is what the shards are tuned for.
type Profile string

// The profiles: with throughput rings begin larger, with memory they stay the
// smallest and no shard spins. Latency is what balanced is: nothing that balanced
// does was found to cost latency.
const (
	ProfileBalanced   Profile = "balanced"
	ProfileLatency    Profile = "latency"
	ProfileThroughput Profile = "throughput"
	ProfileMemory     Profile = "memory"
)

// profiles lists every Profile.
func profiles() []Profile {
	return []Profile{ProfileBalanced, ProfileLatency, ProfileThroughput, ProfileMemory}
}

// spin is what Config.Spin is when the file does not say.
func (p Profile) spin() Spin {
	if p == ProfileMemory {
		return NoSpin
	}
	return Spin(20 * time.Microsecond)
}

// Spin is how long a shard that has run out of work looks for more before it
// sleeps. Its zero value is "as the profile has it", so none at all has a value
// of its own.
type Spin time.Duration

const (
	// NoSpin is written as off in the file.
	NoSpin Spin = -1
	// MaxSpin bounds Spin: longer ones take the processor from the applications
	// whose answer is waited for.
	MaxSpin = Spin(100 * time.Microsecond)
)

// Duration returns the time, 0 when a shard sleeps at once.
func (s Spin) Duration() time.Duration { return max(time.Duration(s), 0) }

// String renders the time as the file has it.
func (s Spin) String() string {
	if s.Duration() == 0 {
		return "off"
	}
	return strings.Replace(s.Duration().String(), "µ", "u", 1)
}

// MarshalText renders the time as String does.
func (s Spin) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalYAML reads off or a duration.
func (s *Spin) UnmarshalYAML(n *yaml.Node) error { return fromText(n, s.setText) }

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

// MaxShards is how many event loops every kind of device can serve: soft names the
// loop of a queue pair in four bits of its number.
const MaxShards = 16

// Loops is the number of event loops on a host with that many processors: of more
// than MaxShards, soft would be left out.
func (c Config) Loops(processors int) int {
	n := c.Shards
	if n == 0 {
		n = max(1, processors/2)
	}
	return min(n, MaxShards)
}

// maxProcessor is the largest number of a processor that Linux can be built for.
const maxProcessor = 8191

// loops checks what the shards are told.
func (k *checker) loops(c Config) {
	oneOf(k, "profile", c.Profile, profiles())
	k.must(c.Spin == NoSpin || c.Spin > 0 && c.Spin <= MaxSpin, "spin", "%v is longer than %v", c.Spin, MaxSpin)
	between(k, "shards", c.Shards, 0, 256)
	seen := make(map[int]bool)
	for i, n := range c.CPUs {
		field := fmt.Sprintf("cpus[%d]", i)
		between(k, field, n, 0, maxProcessor)
		k.must(!seen[n], field, "%d is listed twice", n)
		seen[n] = true
	}
}
