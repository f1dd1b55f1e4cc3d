package ebpf

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// traces tell the programs which tuples may have a flow entry, so that packets of other tuples need no lookup. There is
// a number for each value of the exclusive-or of a tuple's ports: that of the last sweep that found an entry there. A
// number that is more than one sweep old is of entries that are gone. The programs set the trace of an entry that they
// make (trace.h).
type traces struct {
	mem  []byte
	base int64 // offset of struct traces in mem

	mu  sync.Mutex // one sweep at a time
	now uint32
}

// Offsets of the members of struct traces.
const (
	tracesFrom = 0
	tracesNow  = 64
	tracesAt   = 128
)

// newTraces maps the memory of the programs' global variables. There must be no entries yet.
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

// close unmaps the memory. A nil t was never made.
func (t *traces) close() error {
	if t == nil {
		return nil
	}
	return unix.Munmap(t.mem)
}

// leave sets the trace of an entry that user space has made, unless a newer one is there, as the programs do.
func (t *traces) leave(k smcgwFlowKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.freshen(tracesAt + 4*int64(k.Lport^k.Rport))
}

// renew refreshes the traces of the entries for which walk calls found, and lets the others expire. An entry that is
// made during the walk has a trace as new as the walk: tracesNow is written before the walk begins, and the programs
// read it after they have put the entry into the map.
func (t *traces) renew(walk func(found func(*smcgwFlowKey)) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.now
	t.now++
	t.word(tracesNow).Store(t.now)
	if err := walk(func(k *smcgwFlowKey) { t.freshen(tracesAt + 4*int64(k.Lport^k.Rport)) }); err != nil {
		return err // entries that were not found may exist
	}
	t.word(tracesFrom).Store(before)
	return nil
}

// freshen makes a trace as new as the walk. It keeps a newer one, such as that of a SYN-ACK, which must last for
// several sweeps (trace.h), even if a program sets it concurrently.
func (t *traces) freshen(at int64) {
	w := t.word(at)
	for old := w.Load(); old < t.now && !w.CompareAndSwap(old, t.now); old = w.Load() {
	}
}
