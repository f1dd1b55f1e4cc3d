package config

import (
	"fmt"
	"strconv"
)

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
