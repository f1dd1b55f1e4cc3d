package rsocket

import (
	"encoding/binary"
	"math/bits"
)

// iomapSize is the size of an rs_iomap, an entry of the slots after a target list.
const iomapSize = 8 + sgeSize

// announceSlots is how many announcements may be in flight: each is sent from its own scratch buffer.
const announceSlots = 4

// IOMapping is memory for direct placement: the bytes from Offset on, in an offset space that the memory's owner chose,
// and their location.
type IOMapping struct {
	// Offset is the offset of the first byte.
	Offset uint64
	// Region is the memory.
	Region SGE
}

// covers returns the number of bytes that the mapping has from the offset on.
func (m *IOMapping) covers(offset uint64) int {
	if at := offset - m.Offset; offset >= m.Offset && at < uint64(m.Region.Length) {
		return int(uint64(m.Region.Length) - at)
	}
	return 0
}

// overflows reports whether the mapping wraps around either address space.
func (m *IOMapping) overflows() bool {
	return m.Region.overflows() || m.Offset+uint64(m.Region.Length) < m.Offset
}

// iomapBytes encodes an entry in the byte order of the list's owner, as grants are.
func iomapBytes(m IOMapping, ownerBigEndian bool) (b [iomapSize]byte) {
	offset := m.Offset
	if !ownerBigEndian {
		offset = bits.ReverseBytes64(offset)
	}
	binary.BigEndian.PutUint64(b[:], offset)
	g := grantBytes(m.Region, ownerBigEndian)
	copy(b[8:], g[:])
	return b
}

// readIOMap decodes an entry of our list. It loads each field once, because the peer can write there at any time.
func readIOMap(b []byte, ownBigEndian bool) IOMapping {
	m := IOMapping{Offset: binary.BigEndian.Uint64(b), Region: readGrant(b[8:iomapSize], ownBigEndian)}
	if !ownBigEndian {
		m.Offset = bits.ReverseBytes64(m.Offset)
	}
	return m
}

// maps is the state of direct placement: the peer's mappings and ours. Gateways have none.
type maps struct {
	remote []IOMapping // copies of the peer's mappings, by slot, up to the last slot used
	slots  int         // number of our slots, which the peer fills
	own    []byte      // their memory

	local     []localMap // our mappings, by slot of the peer, up to the last slot used
	peerSlots int
	queue     []uint16 // slots to announce, oldest first
	announced uint64   // announcements sent
	completed uint64   // announcements completed
}

// localMap is the content of one of the peer's slots.
type localMap struct {
	IOMapping
	used, queued bool
}

// Announcement is an update of one of the peer's slots to post.
type Announcement struct {
	Write
	// Slot is 0 to 3; the scratch buffer of that number is in use until the message completes.
	Slot int
	// Payload is the entry in the peer's byte order.
	Payload [iomapSize]byte
}

// AddIOMap lets the peer place bytes into memory of ours. The mapping takes a free slot of the peer and is announced
// before all data sent from now on. See [Stream.NextAnnouncement].
func (s *Stream) AddIOMap(m IOMapping) error {
	d := s.maps
	switch {
	case s.err != nil:
		return s.err
	case !s.live() || !s.writable:
		return ErrState
	case d == nil:
		return ErrIOMapSlots
	case m.Region.Length == 0 || m.overflows():
		return ErrIOMap
	case s.creditsAtRisk() >= max(1, int(s.peer.credits)/2): // a peer returns credits only after half a queue of messages
		return ErrIOMapCredits
	}
	slot := 0
	for slot < len(d.local) && d.local[slot].used {
		slot++
	}
	if slot >= d.peerSlots {
		return ErrIOMapSlots
	}
	if slot == len(d.local) {
		d.local = append(d.local, localMap{})
	}
	l := &d.local[slot]
	l.IOMapping, l.used = m, true
	if !l.queued { // a slot that was freed while queued is still queued
		l.queued = true
		d.queue = append(d.queue, uint16(slot))
	}
	return nil
}

// creditsAtRisk returns how many credits announcements may have cost permanently: a stock peer never counts an
// announcement as consumed. Messages counted as consumed beyond the data that we sent must have been announcements.
func (s *Stream) creditsAtRisk() int {
	d := s.maps
	data := s.send.messages - d.announced
	risk := int(d.announced) + len(d.queue)
	if consumed := s.send.limit - uint64(s.peer.credits); consumed > data {
		risk -= int(consumed - data)
	}
	return risk
}

// RemoveIOMap frees the mapping's slot and reports whether the mapping existed. The protocol does not tell the peer,
// which may go on writing until the slot is announced anew. Only invalidating the memory's key stops it, which then
// ends the connection.
func (s *Stream) RemoveIOMap(m IOMapping) bool {
	if s.maps == nil {
		return false
	}
	for i := range s.maps.local {
		if l := &s.maps.local[i]; l.used && l.IOMapping == m {
			l.used = false
			return true
		}
	}
	return false
}

// announcing reports whether mappings wait to be announced; no data may overtake them.
func (s *Stream) announcing() bool { return s.maps != nil && len(s.maps.queue) > 0 }

// NextAnnouncement returns the next announcement that is due and can be sent. Call it until it returns false, after
// adding a mapping and after anything that opens a window.
func (s *Stream) NextAnnouncement() (Announcement, bool) {
	d, out := s.maps, &s.send
	for s.announcing() {
		slot := d.queue[0]
		if l := &d.local[slot]; !l.used {
			l.queued = false
			d.queue = d.queue[:copy(d.queue, d.queue[1:])]
			continue
		}
		if !s.live() || !s.writable || out.messages == out.limit || s.queueFull() || d.announced-d.completed == announceSlots {
			return Announcement{}, false
		}
		d.queue = d.queue[:copy(d.queue, d.queue[1:])]
		d.local[slot].queued = false
		a := Announcement{Slot: int(d.announced % announceSlots), Payload: iomapBytes(d.local[slot].IOMapping, s.peer.bigEndian)}
		a.Imm, a.Length, a.Signaled = MakeImm(OpIomapSGL, uint32(slot)), iomapSize, true
		a.RemoteAddr = s.peer.targets.Addr + uint64(s.peer.targets.Length)*sgeSize + uint64(slot)*iomapSize
		a.RKey = s.peer.targets.Key
		d.announced++
		out.messages++
		out.work()
		out.signal(0, 0, true)
		a.ID = s.workID(workIOMap)
		return a, true
	}
	return Announcement{}, false
}

// receiveIOMap copies the entry that the peer has written, once. Like data, the message uses a credit, and it counts as
// consumed when everything before it is.
func (s *Stream) receiveIOMap(imm Imm, length uint32) (Events, error) {
	d, in := s.maps, &s.recv
	slot := imm.Data()
	switch {
	case d == nil || d.slots == 0:
		return 0, s.violation(ViolationImmediate, imm, length)
	case s.peerShut:
		return 0, s.violation(ViolationShutdown, imm, length)
	case length != iomapSize:
		return 0, s.violation(ViolationLength, imm, length)
	case slot >= uint32(d.slots):
		return 0, s.violation(ViolationIOMap, imm, length)
	case in.messages == in.limit:
		return 0, s.violation(ViolationCredit, imm, length)
	}
	m := readIOMap(d.own[slot*iomapSize:(slot+1)*iomapSize], s.bigEndian)
	if m.overflows() {
		return 0, s.violation(ViolationIOMap, imm, length)
	}
	for uint32(len(d.remote)) <= slot {
		d.remote = append(d.remote, IOMapping{})
	}
	d.remote[slot] = m
	in.ends.put(in.messages, in.ring.Produced())
	in.messages++
	in.countConsumed()
	return EventIOMap, nil
}

// RemoteMap returns the peer's memory for the bytes at the offset, as far as one mapping has it. If several mappings
// cover the offset, the lowest slot wins.
func (s *Stream) RemoteMap(offset uint64) (to SGE, ok bool) {
	if s.maps == nil {
		return SGE{}, false
	}
	for i := range s.maps.remote {
		m := &s.maps.remote[i]
		if n := m.covers(offset); n > 0 {
			return SGE{Addr: m.Region.Addr + (offset - m.Offset), Key: m.Region.Key, Length: uint32(n)}, true
		}
	}
	return SGE{}, false
}

// SendDirect records a write of n bytes, at most MaxRing, to the offset, after everything sent so far. buffered means
// that it is sent from the buffer for direct writes rather than inline. It requires an open window as data does,
// although it uses neither credit nor grant (riowrite).
func (s *Stream) SendDirect(offset uint64, n int, buffered bool) (Write, error) {
	if _, why := s.Window(); why != NotBlocked {
		if s.err != nil {
			return Write{}, s.err
		}
		if why == BlockedClosed {
			return Write{}, ErrState
		}
		return Write{}, ErrBlocked
	}
	to, ok := s.RemoteMap(offset)
	if !ok {
		return Write{}, ErrNotMapped
	}
	if n <= 0 || n > int(to.Length) || n > MaxRing {
		return Write{}, ErrBlocked
	}
	d := &s.send
	w := Write{Bare: true, RemoteAddr: to.Addr, RKey: to.Key, Length: n}
	if buffered {
		if d.direct == nil { // earlier works carried no direct bytes
			d.direct = &directSends{ends: newEndsLog(int(s.set.sendDepth))}
		}
		d.direct.sent += uint64(n)
	}
	d.work()
	w.Signaled = d.signal(n, s.set.signalBytes, true)
	w.ID = s.workID(workDirect)
	return w, nil
}

// DirectFreed returns how many bytes of buffered direct writes have completed.
func (s *Stream) DirectFreed() uint64 {
	if s.send.direct == nil {
		return 0
	}
	return s.send.direct.freed
}
