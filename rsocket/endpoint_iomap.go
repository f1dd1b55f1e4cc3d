package rsocket

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/rmb"
)

const (
	// maxDirect is the longest message of a direct write (RS_MAX_TRANSFER): longer ones would only delay later messages.
	maxDirect = 64 << 10
	// directSize is the size of the memory that direct writes are sent from.
	directSize = 2 * maxDirect
)

// directBuffer is the memory that direct writes are sent from.
type directBuffer struct {
	*rmb.Region
	ring    rmb.Ring // over the region: bytes sent but not completed
	starved bool     // WriteDirect wrote less than asked; the owner waits for EventWritable
}

// AddIOMap lets the peer place bytes into memory of ours. The mapping is announced as soon as credits allow, before
// everything that is committed from now on or was produced but not yet posted. The memory stays the caller's, which
// must keep it registered with remote write access until the connection has ended: a late write of the peer to memory
// that is no longer registered ends the connection. Errors: [ErrIOMapSlots], [ErrIOMapCredits], [ErrIOMap], or what
// broke the stream.
func (e *Endpoint) AddIOMap(m IOMapping) error {
	if err := e.stream.AddIOMap(m); err != nil {
		return err
	}
	return e.postControls()
}

// RemoveIOMap frees the slot of a mapping, see [Stream.RemoveIOMap].
func (e *Endpoint) RemoveIOMap(m IOMapping) bool { return e.stream.RemoveIOMap(m) }

// RemoteMap returns the memory that the peer announced for an offset: its address, its key, and the number of bytes
// from there on.
func (e *Endpoint) RemoteMap(offset uint64) (addr uint64, key uint32, n int, ok bool) {
	to, ok := e.stream.RemoteMap(offset)
	return to.Addr, to.Key, int(to.Length), ok
}

// WriteDirect places p into the peer's mappings at the offset, after everything committed or produced so far and before
// what follows. The peer's program is not notified. p is copied, so the caller may reuse it immediately. A short count
// without an error means that there is no room now: the rest can be written after [EventWritable]. With [ErrNotMapped]
// the rest is at an offset that the peer has not mapped.
func (e *Endpoint) WriteDirect(p []byte, offset uint64) (n int, err error) {
	if err := e.startDirect(); err != nil {
		return 0, err
	}
	for n < len(p) {
		sent, err := e.writeDirect(p[n:], offset+uint64(n))
		if errors.Is(err, ErrBlocked) {
			e.direct.starved = true
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += sent
	}
	return n, nil
}

// startDirect allocates the buffer and posts everything produced before, without leaving anything to coalesce.
func (e *Endpoint) startDirect() error {
	if e.direct == nil && e.stream.Err() == nil {
		r, err := e.arena.AllocLocal(directSize)
		if err != nil {
			return fmt.Errorf("buffer for direct writes: %w", err)
		}
		e.direct = &directBuffer{Region: r, ring: rmb.NewRing(r.Bytes())}
	}
	if e.direct != nil {
		e.direct.starved = false
	}
	_, err := e.pump(false)
	return err
}

// writeDirect sends one message.
func (e *Endpoint) writeDirect(p []byte, offset uint64) (int, error) {
	if e.Unposted() > 0 {
		return 0, ErrBlocked
	}
	n := len(p)
	if to, ok := e.stream.RemoteMap(offset); ok {
		n = min(n, int(to.Length), maxDirect)
	}
	if n <= e.cfg.Inline {
		w, err := e.stream.SendDirect(offset, n, false)
		if err != nil {
			return 0, err
		}
		return n, e.postInline(w, p[:n], 0)
	}
	span := e.direct.ring.WriteSpan()
	n = min(n, len(span))
	at := int(e.direct.ring.Head().Count)
	w, err := e.stream.SendDirect(offset, n, true)
	if err != nil {
		return 0, err
	}
	copy(span, p[:n])
	if err := e.direct.ring.Produce(n); err != nil {
		e.stream.Fail(err)
		return 0, err
	}
	return n, e.post(w, regionSGE(e.direct.Region, at, n), e.push(n))
}

// freeDirect frees what has been sent and reports whether a blocked direct write can continue.
func (e *Endpoint) freeDirect() (awaited bool) {
	if e.direct == nil {
		return false
	}
	if err := e.direct.ring.ConsumeTo(e.stream.DirectFreed()); err != nil {
		e.stream.Fail(err)
	}
	if _, why := e.stream.Window(); !e.direct.starved || why != NotBlocked || e.direct.ring.Free() == 0 {
		return false
	}
	e.direct.starved = false
	return true
}

// postAnnouncements posts all announcements that can be sent now, each from its own scratch entry.
func (e *Endpoint) postAnnouncements() error {
	for e.stream.announcing() {
		a, ok := e.stream.NextAnnouncement()
		if !ok {
			return nil
		}
		at := e.announceScratch() + a.Slot*iomapSize
		copy(e.control.Bytes()[at:], a.Payload[:])
		if err := e.post(a.Write, regionSGE(e.control, at, iomapSize), 0); err != nil {
			return err
		}
	}
	return nil
}

// listSize is the size of the memory that the peer writes to: grants, then mappings.
func (e *Endpoint) listSize() int { return e.cfg.Targets*sgeSize + e.cfg.IOMaps*iomapSize }

// announceScratch is the offset of the memory that announcements are sent from.
func (e *Endpoint) announceScratch() int { return e.listSize() + scratchSize }
