package cm

import (
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Config configures a manager. With only Do set, it behaves as the Linux kernel does.
type Config struct {
	// Do runs a function in the loop of Vector, which outlives the manager, and
	// returns after it. No default.
	Do func(func()) error
	// Vector is the vector whose loop serves queue pair 1. Default 0.
	Vector int
	// Objects bounds the connections, including those being made or just ended. Default 65536.
	Objects int
	// ResponseTimeout is how soon both sides should answer: 4.096 µs << ResponseTimeout, plus the round trip. Default 20,
	// 4.3 s.
	ResponseTimeout uint8
	// PacketLifetime is the maximum time of a packet in the network, in the same code. Default 16, 0.27 s.
	PacketLifetime uint8
	// ServiceTimeout is how long an application may take to answer a request, in the same code. Default 24, 69 s.
	ServiceTimeout uint8
	// Retries is how often a message is repeated before the peer is considered gone. Default and maximum 15.
	Retries int
	// TimeWait is how long an ended connection still answers. Default: two packet lifetimes.
	TimeWait time.Duration
	// CAGUID identifies the device to peers, which consider two connections with the same GUID and queue pair number the
	// same connection. It should survive restarts. Default: derived from the device's first address and port.
	CAGUID uint64
}

func (c Config) withDefaults(port verbs.PortAttr) Config {
	setDefault(&c.Objects, 65536)
	setDefault(&c.ResponseTimeout, 20)
	setDefault(&c.PacketLifetime, 16)
	setDefault(&c.ServiceTimeout, 24)
	setDefault(&c.Retries, 15)
	setDefault(&c.TimeWait, 2*codeTime(c.PacketLifetime))
	setDefault(&c.CAGUID, guidOf(port))
	return c
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// guidOf returns a locally administered EUI-64: the folded address and the UDP port.
func guidOf(port verbs.PortAttr) uint64 {
	var gid verbs.GID
	if len(port.GIDs) > 0 {
		gid = port.GIDs[0].GID
	}
	folded := get64(gid[:8])*0x9e3779b97f4a7c15 ^ get64(gid[8:]) ^ uint64(port.UDPPort)<<40
	return folded&^(1<<56) | 1<<57
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, verbs.ErrInvalid)...))
		}
	}
	bad(c.Do != nil, "loop missing")
	bad(c.Vector >= 0, "vector: %d is negative", c.Vector)
	bad(c.Objects >= 0, "objects: %d is negative", c.Objects)
	bad(c.ResponseTimeout < 32, "response timeout: %d, want 0 to 31", c.ResponseTimeout)
	bad(c.PacketLifetime < 31, "packet lifetime: %d, want 0 to 30", c.PacketLifetime)
	bad(c.ServiceTimeout < 32, "service timeout: %d, want 0 to 31", c.ServiceTimeout)
	bad(c.Retries >= 0 && c.Retries <= 15, "retries: %d, want 0 to 15", c.Retries)
	bad(c.TimeWait >= 0, "time wait: %v is negative", c.TimeWait)
	return errors.Join(errs...)
}
