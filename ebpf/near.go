package ebpf

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"
)

// SetNear tells that the host of an address is under this kernel, for ttl. Connections
// of rules with action auto that stay native between the two do not pace: where the
// host's congestion control does, and the program has chosen none, the socket gets
// another one (reason same_kernel). The programs forget an address whose connections
// take longer to come up than they can within a kernel.
func (d *Datapath) SetNear(addr netip.Addr, ttl time.Duration) error {
	k, err := peerKey(addr, 0)
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.objs.Near.Put(k, monotonic()+uint64(max(ttl, 0))); err != nil {
		return fmt.Errorf("near %v: %w", addr, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.control.Near != 0 {
		return nil
	}
	d.control.Near = 1
	return d.putControlLocked()
}

// nearRTT is the longest round trip of a handshake within a kernel, in microseconds.
const nearRTT = 2000

// allowedCongestion lists what programs without privileges may choose.
const allowedCongestion = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"

// unpaced is the congestion control for connections within a kernel, as a constant of
// the programs: the one that most hosts use, where the host allows it, or the one that
// every kernel has.
func unpaced() (name [16]int8) {
	chosen := "reno"
	if b, err := os.ReadFile(allowedCongestion); err == nil && slices.Contains(strings.Fields(string(b)), "cubic") {
		chosen = "cubic"
	}
	for i := range chosen {
		name[i] = int8(chosen[i])
	}
	return name
}

// Paces reports whether the default congestion control of the namespace paces, as paces
// of near.h tells it by its name.
func Paces() bool {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	return err == nil && strings.HasPrefix(string(b), "bbr")
}
