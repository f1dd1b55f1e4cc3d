package config

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is an inclusive range of ports. In a file it is a number or a range such as
// 6000-7000.
type PortRange uint32

// newPortRange returns the range of ports from first to last.
func newPortRange(first, last uint16) PortRange { return PortRange(first)<<16 | PortRange(last) }

// Ports returns the ranges of single ports.
func Ports(list ...uint16) []PortRange {
	out := make([]PortRange, len(list))
	for i, p := range list {
		out[i] = newPortRange(p, p)
	}
	return out
}

// First returns the first port of the range.
func (r PortRange) First() uint16 { return uint16(r >> 16) }

// Last returns the last port of the range.
func (r PortRange) Last() uint16 { return uint16(r) }

// Single reports whether the range is a single port. Only a rule that names a port this way
// carries it if it is on the never-list.
func (r PortRange) Single() bool { return r.First() == r.Last() }

// Has reports whether a port is in the range.
func (r PortRange) Has(p uint16) bool { return r.First() <= p && p <= r.Last() }

// String renders the range as in the file.
func (r PortRange) String() string {
	if r.Single() {
		return strconv.Itoa(int(r.First()))
	}
	return fmt.Sprintf("%d-%d", r.First(), r.Last())
}

// MarshalText renders the range as String does.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r *PortRange) setText(text string) error {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	from, to = strings.TrimSpace(from), strings.TrimSpace(to)
	first, err := strconv.ParseUint(from, 10, 16)
	last, errLast := strconv.ParseUint(to, 10, 16)
	if err != nil || errLast != nil || last < first || !isDecimal(from) || !isDecimal(to) { // 010 would be 8 in YAML
		return fmt.Errorf("%q is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here", text)
	}
	*r = newPortRange(uint16(first), uint16(last))
	return nil
}

// OptionalPort is a UDP port that can be disabled. Its zero value means "the default", so
// "none" has a value of its own.
type OptionalPort int32

// NoPort is written as 0 in the file.
const NoPort OptionalPort = -1

// Port returns the port, or 0 if it is disabled.
func (p OptionalPort) Port() uint16 { return uint16(max(p, 0)) }

// MarshalText renders the number as in the file.
func (p OptionalPort) MarshalText() ([]byte, error) {
	return strconv.AppendUint(nil, uint64(p.Port()), 10), nil
}

func (p *OptionalPort) setText(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a number from 0 to 65535", text)
	}
	*p = OptionalPort(n)
	if n == 0 {
		*p = NoPort
	}
	return nil
}
