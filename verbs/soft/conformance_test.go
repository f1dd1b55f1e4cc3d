package soft

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// openFree opens a device on a free port; other tests may run on this host.
func openFree(t testing.TB, cfg *Config) *Device {
	for range 100 {
		cfg.UDPPort = uint16(20000 + rand.IntN(12000))
		d, err := Open(*cfg)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return d
	}
	require.Fail(t, "no free port")
	return nil
}

func openSide(t testing.TB, cfg *Config) verbstest.Side {
	d := openFree(t, cfg)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	return verbstest.Side{Device: d, PD: pd, Driver: driveAll(t, d)}
}

// drivers drives all vectors of a device from one loop: the suite works on the
// first, but the kernel may give datagrams to any.
type drivers []verbs.Driver

func driveAll(t testing.TB, d *Device) verbs.Driver {
	var all drivers
	for i := range d.Attr().Vectors {
		dr, err := d.Drive(i, verbstest.Deaf{})
		require.NoError(t, err)
		all = append(all, dr)
	}
	t.Cleanup(func() { require.NoError(t, all.Close()) })
	return all
}

func (ds drivers) Progress(now time.Time) (worked bool, next time.Time) {
	for _, d := range ds {
		w, at := d.Progress(now)
		worked = worked || w
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return worked, next
}

func (ds drivers) Flush() {
	for _, d := range ds {
		d.Flush()
	}
}

func (ds drivers) Arm() bool {
	for i, d := range ds {
		if !d.Arm() {
			ds[:i].Disarm()
			return false
		}
	}
	return true
}

func (ds drivers) Disarm() {
	for _, d := range ds {
		d.Disarm()
	}
}

func (ds drivers) Close() error {
	var errs []error
	for _, d := range ds {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// openPair opens two devices on loopback.
func openPair(t testing.TB, a, b Config) *verbstest.Pair {
	p := &verbstest.Pair{A: openSide(t, &a), B: openSide(t, &b)}
	p.Attr = func(side *verbstest.Side, dest uint32) verbs.QPAttr {
		attr, peer := verbs.ConnectAttr(dest), &b
		if side == &p.B {
			peer = &a
		}
		attr.AH = verbs.AHAttr{DGID: verbs.GIDOf(peer.Addrs[0]), UDPPort: peer.UDPPort, Port: 1}
		attr.PathMTU = side.Device.Port().ActiveMTU
		return attr
	}
	return p
}

// on is a device's configuration on an address of this host.
func on(addr string, change ...func(*Config)) Config {
	cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	for _, f := range change {
		f(&cfg)
	}
	return cfg
}

func TestConformance(t *testing.T) {
	plain := func(c *Config) { c.NoOffload, c.MTU = true, verbs.MTU1024 }
	vectors := func(c *Config) { c.Vectors, c.ECN = 3, true }
	for name, c := range map[string][2]Config{
		"IPv4":      {on("127.0.0.1"), on("127.0.0.2")},
		"IPv6":      {on("::1", vectors), on("::1", vectors)},
		"NoOffload": {on("127.0.0.1", plain), on("127.0.0.1", plain)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits more than it computes
			verbstest.Run(t, func(t testing.TB) *verbstest.Pair { return openPair(t, c[0], c[1]) })
		})
	}
}

func TestEngineAllocatesNothing(t *testing.T) {
	plain := func(c *Config) { c.NoOffload, c.MTU = true, verbs.MTU1024 }
	ecn := func(c *Config) { c.ECN = true }
	for name, c := range map[string][2]Config{
		"IPv4":                 {on("127.0.0.1"), on("127.0.0.2")},
		"IPv6":                 {on("::1"), on("::1")},
		"IPv4 with ECN":        {on("127.0.0.1", ecn), on("127.0.0.2", ecn)},
		"IPv6 with ECN":        {on("::1", ecn), on("::1", ecn)},
		"IPv4 without offload": {on("127.0.0.1", plain), on("127.0.0.2", plain)},
		"IPv6 without offload": {on("::1", plain), on("::1", plain)},
	} {
		t.Run(name, func(t *testing.T) {
			verbstest.Allocations(t, func(t testing.TB) *verbstest.Pair { return openPair(t, c[0], c[1]) })
		})
	}
}
