package ebpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Handover is what a guardian holds, so that steering outlives the daemon long
// enough for its sockets to reset the applications. The files are duplicates.
type Handover struct {
	// Heartbeat is the map for StopHeartbeat.
	Heartbeat *os.File
	// Hold are the TUN devices, the namespace of the legs, and all links but those
	// that make offers.
	Hold []*os.File
}

// Handover duplicates the descriptors for a guardian; the caller closes them.
// Links attached later to new devices are not among them.
func (d *Datapath) Handover() (h Handover, err error) {
	if err := d.enter(); err != nil {
		return Handover{}, err
	}
	defer d.leave()
	if h.Heartbeat, err = duplicate(d.objs.Beat.FD(), "heartbeat"); err != nil {
		return Handover{}, err
	}
	if d.cfg.Counting { // nothing has to outlive the daemon
		return h, nil
	}
	for _, fd := range append([]int{d.appTUN, d.wireTUN, int(d.cfg.Legs.File().Fd())}, d.linkFDs()...) {
		f, err := duplicate(fd, "steering")
		if err != nil {
			return Handover{}, errors.Join(err, h.Close())
		}
		h.Hold = append(h.Hold, f)
	}
	return h, nil
}

// linkFDs returns the descriptors of the steering links, in an order that is
// the same every time.
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

// duplicate returns a close-on-exec duplicate of fd.
func duplicate(fd int, name string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", name, err)
	}
	return os.NewFile(uintptr(n), name), nil
}

// Close closes all files of the handover.
func (h Handover) Close() error {
	var errs []error
	for _, f := range append([]*os.File{h.Heartbeat}, h.Hold...) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// ReadHeartbeat returns the time of the last heartbeat on the kernel's monotonic
// clock, 0 if there was none or it was stopped; for the guardian, as StopHeartbeat.
func ReadHeartbeat(heartbeat *os.File) (at time.Duration, err error) {
	err = withMap(heartbeat, func(m *bpf.Map) error {
		var ns uint64
		err := m.Lookup(uint32(0), &ns)
		at = time.Duration(ns)
		return err
	})
	return at, err
}

// StopHeartbeat makes the gateway count as gone at once. It is for the guardian,
// with the heartbeat map it was handed; heartbeat stays open.
func StopHeartbeat(heartbeat *os.File) error {
	return withMap(heartbeat, func(m *bpf.Map) error { return m.Put(uint32(0), uint64(0)) })
}

// withMap uses the map behind a file, which stays open.
func withMap(f *os.File, use func(*bpf.Map) error) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	m, err := bpf.NewMapFromFD(fd) // takes fd over
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	defer func() { _ = m.Close() }()
	if err := use(m); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// ensure that links of this library still tell their descriptor.
var _ interface{ FD() int } = (*link.RawLink)(nil)
