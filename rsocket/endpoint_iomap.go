package rsocket

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/rmb"
)

const (
	// maxDirect is the longest message of a direct write: longer ones would only delay what comes after them
	// (RS_MAX_TRANSFER).
	maxDirect = 64 << 10
	// directSize is the memory direct writes are sent from.
	directSize = 2 * maxDirect
)

// directBuffer is what direct writes are sent from.
type directBuffer struct {
	*rmb.Region
	ring    rmb.Ring // over the region: bytes sent and not completed
	starved bool     // WriteDirect came short, and the owner waits for EventWritable
}

// AddIOMap lets the peer place bytes into memory of ours. It is announced in front of everything committed, or produced
// and not yet posted, from now on, as soon as credits allow. The memory stays the caller's. It must stay registered
// with remote write access until the connection has ended; a late write of the peer to memory that is no longer
// registered ends the connection. Errors: [ErrIOMapSlots], [ErrIOMapCredits], [ErrIOMap], or what broke the stream.
func (e *Endpoint) AddIOMap(m IOMapping) error {
	if err := e.stream.AddIOMap(m); err != nil {
		return err
	}
	return e.postControls()
}

// RemoveIOMap gives the slot of a mapping back, see [Stream.RemoveIOMap].
func (e *Endpoint) RemoveIOMap(m IOMapping) bool { return e.stream.RemoveIOMap(m) }

// RemoteMap returns what the peer announced for an offset: the address, the key, and how many bytes from there on.
func (e *Endpoint) RemoteMap(offset uint64) (addr uint64, key uint32, n int, ok bool) {
	to, ok := e.stream.RemoteMap(offset)
	return to.Addr, to.Key, int(to.Length), ok
}

// WriteDirect places p into the peer's mappings at the offset, after everything committed or produced so far and in
// front of what follows. The peer's program is told nothing. All of p is copied, so it is the caller's again at once. A
// short count without an error means that there is no room now: the rest can go after [EventWritable]. With
// [ErrNotMapped] the rest is at an offset the peer has not mapped.
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

// startDirect makes the buffer, and sends what goes before: nothing is left to gather.
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
		w, err := e.stream.SendDirect(offset, n, false, true)
		if err != nil {
			return 0, err
		}
		return n, e.postInline(w, p[:n], 0)
	}
	span := e.direct.ring.WriteSpan()
	n = min(n, len(span))
	at := int(e.direct.ring.Head().Count)
	w, err := e.stream.SendDirect(offset, n, true, true)
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

// freeDirect frees what has been sent and reports whether a direct write may go on.
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

// postAnnouncements posts all announcements that may go, each from its own scratch entry.
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

// listSize is what the peer writes to: grants, then mappings.
func (e *Endpoint) listSize() int { return e.cfg.Targets*sgeSize + e.cfg.IOMaps*iomapSize }

// announceScratch is where announcements are sent from.
func (e *Endpoint) announceScratch() int { return e.listSize() + scratchSize }
