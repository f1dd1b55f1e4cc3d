package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Rollout is the share of the selected connections that is carried.
type Rollout struct {
	// Percent is the share for each rule without one of its own. Default: 100%.
	Percent Share `yaml:"percent"`
}

// Share is a part of all, in hundredths of a percent. In a file it is a percentage such as
// 10%, 0.5% or 10. Its zero value means "the default", so "none" has a value of its own.
type Share int64

// Special shares. NoShare is written as 0 in the file.
const (
	NoShare  Share = -1
	AllShare Share = 100 * percent

	percent = 100 // hundredths
)

// Percent returns the share as a percentage.
func (s Share) Percent() float64 { return float64(max(s, 0)) / percent }

// Of returns that part of n, and at least 1.
func (s Share) Of(n int) int { return max(1, int(int64(n)*int64(s)/int64(AllShare))) }

// String renders the share with a percent sign.
func (s Share) String() string { return strconv.FormatFloat(s.Percent(), 'f', -1, 64) + "%" }

// MarshalText renders the share as String does, or nothing if it is not given.
func (s Share) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return []byte(s.String()), nil
}

func (s *Share) setText(text string) error {
	v, ok := hundredths(text)
	if !ok && text != "" {
		return fmt.Errorf("%q is not a share from 0%% to 100%%", text)
	}
	if v == 0 && text != "" {
		v = int(NoShare)
	}
	*s = Share(v)
	return nil
}

// ParseShare parses a share as written in the file.
func ParseShare(text string) (s Share, err error) {
	if text == "" {
		return 0, fmt.Errorf("%q is not a share from 0%% to 100%%", text)
	}
	err = s.setText(text)
	return s, err
}

// hundredths parses a percentage and returns it in hundredths.
func hundredths(text string) (int, bool) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(v >= 0 && v <= 100) {
		return 0, false
	}
	n := int(math.Round(v * percent))
	return n, n > 0 || v == 0
}

// Guard sets the mode back to observe when carrying does harm.
type Guard struct {
	// Aborted is the share of carried connections that have ended, reset by a gateway, at
	// which the guard trips. Default: 0, resets do not count.
	Aborted Share `yaml:"aborted"`
	// Slower is the share at which the guard trips: of a rule's connections, made by this
	// host and within the share of the rollout, that took longer than 95% of those outside of
	// it; at least 10%. Default: 0, connections are not compared.
	Slower Share `yaml:"slower"`
	// Window is the time over which connections are counted. Default: 1m.
	Window time.Duration `yaml:"window"`
	// Minimum is how many must have been reset, or slower. Default: 5.
	Minimum int `yaml:"minimum"`
}

// On reports whether the guard is enabled.
func (g Guard) On() bool { return g.Aborted > 0 || g.Compares() }

// Compares reports whether connections are compared.
func (g Guard) Compares() bool { return g.Slower > 0 }

// leastSlower is far above the 5% that connections as fast as native ones reach by
// definition.
const leastSlower = 10 * percent

func (k *checker) guard(g Guard) {
	k.must(!g.Compares() || g.Slower >= leastSlower, "guard.slower", "%v is below %v: of connections that are as fast as native ones 5%% count as slower", g.Slower, Share(leastSlower))
	between(k, "guard.window", g.Window, time.Second, 24*time.Hour)
	between(k, "guard.minimum", g.Minimum, 1, 1_000_000)
}
