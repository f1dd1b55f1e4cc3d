package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	bpf "github.com/cilium/ebpf"
)

// traces tell the programs which tuples may have a flow entry, so that packets of
// others need no lookup: a number for each value that the ports of a tuple can
// have, exclusive-or. It is that of the sweep by which an entry was last there;
// what is older than one sweep is of entries that are gone. The programs leave
// the trace of an entry they make (trace.h).
type traces struct {
	mem  *bpf.Memory
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
	mem, err := o.Globals.Memory()
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	t := &traces{mem: mem, base: int64(base), now: 1}
	if err := t.put(tracesNow, t.now); err != nil {
		return nil, err
	}
	return t, t.put(tracesFrom, t.now)
}

func (t *traces) put(at int64, v uint32) error {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	if _, err := t.mem.WriteAt(b[:], t.base+at); err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	return nil
}

// leave leaves the trace of an entry that user space has made, unless a newer one is there, as the programs do.
func (t *traces) leave(k smcgwFlowKey) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freshen(tracesAt + 4*int64(k.Lport^k.Rport))
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
	if err := t.put(tracesNow, t.now); err != nil {
		return err
	}
	var failed error
	err := walk(func(k *smcgwFlowKey) {
		if err := t.freshen(tracesAt + 4*int64(k.Lport^k.Rport)); err != nil {
			failed = err
		}
	})
	if err != nil || failed != nil { // what was not found may be there
		return errors.Join(err, failed)
	}
	return t.put(tracesFrom, before)
}

// freshen makes a trace as new as the walk. That of a SYN-ACK, which is to last some
// sweeps, is newer (trace.h).
func (t *traces) freshen(at int64) error {
	var b [4]byte
	if _, err := t.mem.ReadAt(b[:], t.base+at); err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	if binary.NativeEndian.Uint32(b[:]) >= t.now {
		return nil
	}
	return t.put(at, t.now)
}
