package soft

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

const (
	// batchTrains and batchArena bound what is collected before it is sent: an arena for as many whole trains as go out in
	// one call.
	batchTrains = 32
	batchArena  = outBytes + 32<<10
	// copyBelow is the size below which payloads are copied after their header, in the same pass that computes the ICRC.
	// A train is then one piece of memory; the kernel takes as long for an element of the gather list as for copying 1 KiB.
	copyBelow = 2048
	// arenaPerPacket is the most arena that one datagram takes beside a payload that is copied.
	arenaPerPacket = wire.MaxHeaderLen + 3 + wire.ICRCLen
)

// transmitter collects datagrams into trains. Payload stays in place until the trains are sent; headers, padding and
// ICRC are in the arena, which is filled from front to back, so that the tail of one datagram and the head of the next
// are one element of the gather list.
type transmitter struct {
	link   link
	narrow func(t *train) // called for a train that is too long for its path
	ect    bool
	max    int // maximum datagrams per train, from the link
	trains []train
	arena  []byte
	spare  [batchTrains][][]byte // gather lists for reuse
}

func newTransmitter(l link, ect bool) *transmitter {
	return &transmitter{link: l, ect: ect, trains: make([]train, 0, batchTrains), arena: make([]byte, 0, batchArena)}
}

// add appends a datagram to p: h and the payload, which is the concatenation of
// parts. The parts must stay unchanged until flush, unless they are shorter than copyBelow.
func (t *transmitter) add(p *path, h *wire.Header, parts [][]byte, length int) {
	t.put(p, h, parts, length, false)
}

// put is add, or copies the payload whatever its length: a program may be changing it, and the ICRC must be right for
// what is sent.
func (t *transmitter) put(p *path, h *wire.Header, parts [][]byte, length int, copied bool) {
	copied = copied || length < copyBelow
	size, need := h.Len()+length+wire.Pad(length)+wire.ICRCLen, arenaPerPacket
	if copied {
		need += length
	}
	if len(t.arena)+need > cap(t.arena) {
		t.flush()
	}
	tr := t.trainFor(p, size)
	mark := len(t.arena)
	t.arena = h.Append(t.arena, length)
	state := p.icrc.Begin(uint16(tr.count), size, t.arena[mark:])
	if !copied {
		tr.appendArena(t.arena[mark:])
		mark = len(t.arena)
	}
	for _, part := range parts {
		if copied {
			t.arena, state = wire.UpdateAppend(t.arena, state, part)
		} else {
			tr.bufs, state = append(tr.bufs, part), wire.Update(state, part)
		}
	}
	pad := len(t.arena)
	for range wire.Pad(length) {
		t.arena = append(t.arena, 0)
	}
	state = wire.Update(state, t.arena[pad:])
	t.arena = wire.AppendICRC(t.arena, state)
	tr.appendArena(t.arena[mark:])
	tr.count++
	tr.total += size
}

// addRun appends datagrams to p that carry a payload of whole MTUs: those in the middle of a message, with consecutive
// PSNs from that of h. One PSN in every asks for an acknowledgement, and the last one does if last is set.
func (t *transmitter) addRun(p *path, h *wire.Header, payload []byte, mtu int, every uint32, last bool) {
	const mask, ask = 1<<24 - 1, 1 << 31
	var first [wire.BTHLen]byte
	bth := h.Append(first[:0], mtu)
	size := wire.BTHLen + mtu + wire.ICRCLen
	run := p.icrc.BeginRun(size, bth)
	copied, need := mtu < copyBelow, arenaPerPacket
	if copied {
		need = size
	}
	for psn := h.PSN; len(payload) > 0; psn = wire.PSNAdd(psn, 1) {
		part := payload[:mtu:mtu]
		payload = payload[mtu:]
		word := psn & mask
		if psn%every == 0 || last && len(payload) == 0 {
			word |= ask
		}
		if len(t.arena)+need > cap(t.arena) {
			t.flush()
		}
		tr := t.trainFor(p, size)
		mark := len(t.arena)
		t.arena = binary.BigEndian.AppendUint32(append(t.arena, bth[:wire.BTHLen-4]...), word)
		state := run.At(uint16(tr.count), word)
		if copied {
			t.arena, state = wire.UpdateAppend(t.arena, state, part)
		} else {
			tr.appendArena(t.arena[mark:])
			mark = len(t.arena)
			tr.bufs = append(tr.bufs, part)
			state = wire.Update(state, part)
		}
		t.arena = wire.AppendICRC(t.arena, state)
		tr.appendArena(t.arena[mark:])
		tr.count++
		tr.total += size
	}
}

// appendArena appends b, by extending the last element of the gather list if b follows it directly.
func (tr *train) appendArena(b []byte) {
	if last := len(tr.bufs) - 1; last >= 0 {
		if prev := tr.bufs[last]; cap(prev) > len(prev) && len(b) > 0 && &prev[:len(prev)+1][len(prev)] == &b[0] {
			tr.bufs[last] = prev[:len(prev)+len(b)]
			return
		}
	}
	tr.bufs = append(tr.bufs, b)
}

// trainFor returns the train for a datagram of this size: the last one if it fits, otherwise a new one.
func (t *transmitter) trainFor(p *path, size int) *train {
	if n := len(t.trains); n > 0 {
		tr := &t.trains[n-1]
		if tr.local == p.local && tr.lane == p.lane && tr.dst == p.dst && size <= tr.size &&
			tr.count*tr.size == tr.total && tr.count < t.max && tr.total+size <= maxTrainBytes && len(tr.bufs) < maxTrainBufs {
			return tr
		}
		if n == batchTrains || len(t.arena)+maxTrainBytes > cap(t.arena) {
			t.flush()
		}
	}
	n := len(t.trains)
	if n == 0 {
		t.max = min(maxTrainCount, t.link.maxTrain())
	}
	t.trains = append(t.trains, train{
		local: p.local, lane: p.lane, ect: t.ect, dst: p.dst, size: size, bufs: t.spare[n][:0],
	})
	return &t.trains[n]
}

// maxTrainBufs bounds the gather list: UIO_MAXIOV, less the parts of one more datagram.
const maxTrainBufs = 1024 - 2*maxSGE

// flush sends everything.
func (t *transmitter) flush() {
	if len(t.trains) == 0 {
		return
	}
	t.link.send(t.trains)
	for i := range t.trains {
		if t.trains[i].tooLong {
			t.narrow(&t.trains[i])
		}
		clear(t.trains[i].bufs)
		t.spare[i] = t.trains[i].bufs[:0]
	}
	t.trains = t.trains[:0]
	t.arena = t.arena[:0]
}
