package ebpf

import (
	"errors"
	"fmt"
	"slices"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// Handover is what a guardian holds so that the steering outlives the daemon long enough for the daemon's sockets to
// reset the applications. The files are duplicates.
type Handover struct {
	// Heartbeat is the map for ReadHeartbeat and StopHeartbeat.
	Heartbeat *fdpass.File
	// Hold has the TUN devices, the namespace of the legs, and all links except those that make offers.
	Hold []*fdpass.File
}

// Handover duplicates the descriptors for a guardian; the caller closes them.
// Links attached later to new devices are not among them.
func (d *Datapath) Handover() (h Handover, err error) {
	if err := d.enter(); err != nil {
		return Handover{}, err
	}
	defer d.leave()
	if h.Heartbeat, err = fdpass.Duplicate(d.objs.Beat.FD()); err != nil {
		return Handover{}, fmt.Errorf("heartbeat: %w", err)
	}
	if d.counting { // nothing needs to outlive the daemon
		return h, nil
	}
	for _, fd := range append([]int{d.appTUN, d.wireTUN, int(d.cfg.Legs.File().Fd())}, d.linkFDs()...) {
		f, err := fdpass.Duplicate(fd)
		if err != nil {
			return Handover{}, errors.Join(fmt.Errorf("steering: %w", err), h.Close())
		}
		h.Hold = append(h.Hold, f)
	}
	return h, nil
}

// linkFDs returns the descriptors of the steering links in ascending order.
func (d *Datapath) linkFDs() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	links := slices.Clone(d.steering)
	for _, dev := range d.devices {
		links = append(links, dev.links...)
	}
	var fds []int
	for _, l := range links {
		if f, ok := l.(interface{ FD() int }); ok {
			fds = append(fds, f.FD())
		}
	}
	slices.Sort(fds)
	return fds
}

// Close closes all files of the handover.
func (h Handover) Close() error {
	var errs []error
	for _, f := range append([]*fdpass.File{h.Heartbeat}, h.Hold...) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// ReadHeartbeat returns the time of the last heartbeat on the kernel's monotonic clock, or 0 if there was none or it
// was stopped. Like StopHeartbeat it is for the guardian.
func ReadHeartbeat(heartbeat *fdpass.File) (at time.Duration, err error) {
	err = withMap(heartbeat, func(m *bpf.Map) error {
		var ns uint64
		err := m.Lookup(uint32(0), &ns)
		at = time.Duration(ns)
		return err
	})
	return at, err
}

// StopHeartbeat makes the gateway count as gone immediately. The guardian calls it with the heartbeat map that it was
// handed, which stays open.
func StopHeartbeat(heartbeat *fdpass.File) error {
	return withMap(heartbeat, func(m *bpf.Map) error { return m.Put(uint32(0), uint64(0)) })
}

// withMap calls use with the map that f refers to. f stays open.
func withMap(f *fdpass.File, use func(*bpf.Map) error) error {
	own, err := fdpass.Duplicate(f.FD())
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	m, err := bpf.NewMapFromFD(own.FD()) // takes ownership of the descriptor
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	defer func() { _ = m.Close() }()
	if err := use(m); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// Links of the library must still expose their descriptor.
var _ interface{ FD() int } = (*link.RawLink)(nil)
