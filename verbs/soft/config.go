package soft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/smcgw/smcgw/verbs"
)

// maxVectors is the number of vectors that the low bits of a queue pair's number can identify.
const maxVectors = lanes

// Config configures a device. Only Addrs must be set.
type Config struct {
	// Name is the name of the device. Default "soft0".
	Name string
	// Addrs are the addresses of the device, its GIDs in this order. They must belong to this host; several devices need
	// different addresses, ports or network namespaces.
	Addrs []netip.Addr
	// UDPPort is the port the device receives on. Default verbs.RoCEUDPPort.
	UDPPort uint16
	// Vectors is the number of event loops that drive the device. Default 1,
	// at most 16.
	Vectors int
	// MTU is the largest path MTU. Default: the largest that fits the
	// interfaces of all addresses.
	MTU verbs.MTU
	// MaxQP bounds the queue pairs. Default 65536.
	MaxQP int
	// MaxMemory bounds the memory allocated by AllocMR. Default 4 GiB.
	MaxMemory uint64
	// NoOffload makes the device use neither UDP_SEGMENT nor UDP_GRO, as if the kernel lacked both.
	NoOffload bool
	// ECN marks sent packets as ECN capable. Use it only in networks whose receivers answer marks with CNPs; the kernel's
	// rxe does not.
	ECN bool
	// Within runs a function that opens a socket, at any time of the device's life and on any thread. It is for devices in
	// another network namespace than the threads; Open itself must be called in that namespace. Default: call the function
	// directly.
	Within func(func() error) error
	// Priority is the SO_PRIORITY of the sockets; above 6 it needs CAP_NET_ADMIN.
	// Default: the kernel's.
	Priority int
	// Logger receives events of the device. Default: discard.
	Logger *slog.Logger

	// newLink replaces the sockets in tests.
	newLink func(cfg *Config, vector int) (link, error)
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "soft0")
	c.UDPPort = cmp.Or(c.UDPPort, verbs.RoCEUDPPort)
	c.Vectors = cmp.Or(c.Vectors, 1)
	c.MaxQP = cmp.Or(c.MaxQP, 1<<16)
	c.MaxMemory = cmp.Or(c.MaxMemory, 4<<30)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Within == nil {
		c.Within = func(open func() error) error { return open() }
	}
	if c.newLink == nil {
		c.newLink = newUDPLink
	}
	return c
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+": %w", append(args, verbs.ErrInvalid)...))
		}
	}
	bad(len(c.Addrs) > 0 && len(c.Addrs) <= 256, "addrs: %d, want 1 to 256", len(c.Addrs))
	for i, a := range c.Addrs {
		bad(a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.Is4In6(), "addrs[%d]: %v is no address of a host", i, a)
	}
	bad(c.Vectors >= 0 && c.Vectors <= maxVectors, "vectors: %d, want 1 to %d", c.Vectors, maxVectors)
	bad(c.MTU == 0 || c.MTU.Bytes() != 0, "mtu: %d is no path MTU", c.MTU)
	bad(c.MaxQP >= 0 && c.MaxQP <= 1<<20, "max qp: %d, want 1 to %d", c.MaxQP, 1<<20)
	return errors.Join(errs...)
}
