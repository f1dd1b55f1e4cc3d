package ebpf

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// traces tell the programs which tuples may have a flow entry, so that packets of
// others need no lookup: a number for each value that the ports of a tuple can
// have, exclusive-or. It is that of the sweep by which an entry was last there;
// what is older than one sweep is of entries that are gone. The programs leave
// the trace of an entry they make (trace.h).
type traces struct {
	mem  []byte
	base int64 // of struct traces in it

	mu  sync.Mutex // one sweep at a time
	now uint32
}

// The members of struct traces.
const (
	tracesFrom = 0
	tracesNow  = 64
	tracesAt   = 128
)

// newTraces opens the memory of the programs' global variables. There must be no
// entries yet.
func newTraces(o *objects, base uint32) (*traces, error) {
	mem, err := unix.Mmap(o.Globals.FD(), 0, int(o.Globals.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	t := &traces{mem: mem, base: int64(base), now: 1}
	t.word(tracesNow).Store(t.now)
	t.word(tracesFrom).Store(t.now)
	return t, nil
}

// close ends all use of them. What was never made is nil.
func (t *traces) close() error {
	if t == nil {
		return nil
	}
	return unix.Munmap(t.mem)
}

// leave leaves the trace of an entry that user space has made, unless a newer one is there, as the programs do.
func (t *traces) leave(k smcgwFlowKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freshen(tracesAt + 4*int64(k.Lport^k.Rport))
}

// renew keeps the traces of the entries that walk finds, by what it hands to its
// argument, and lets those of others fade. Entries that are made meanwhile are
// as new as the walk: their number is read when they are in the map, and now is
// written before the walk begins.
func (t *traces) renew(walk func(found func(*smcgwFlowKey)) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.now
	t.now++
	t.word(tracesNow).Store(t.now)
	if err := walk(func(k *smcgwFlowKey) { t.freshen(tracesAt + 4*int64(k.Lport^k.Rport)) }); err != nil {
		return err // what was not found may be there
	}
	t.word(tracesFrom).Store(before)
	return nil
}

// freshen makes a trace as new as the walk. That of a SYN-ACK, which is to last some
// sweeps, is newer (trace.h), also if a program leaves it now.
func (t *traces) freshen(at int64) {
	w := t.word(at)
	for old := w.Load(); old < t.now && !w.CompareAndSwap(old, t.now); old = w.Load() {
	}
}
