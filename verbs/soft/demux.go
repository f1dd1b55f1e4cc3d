package soft

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// deliver implements receiver. It makes the checks that every packet has to pass, in the order of rxe_recv: form, queue
// pair, keys, source, ICRC. Packets that fail are counted and dropped silently.
func (v *vector) deliver(d *datagram) {
	v.arrived++
	h := &v.header
	payload, err := h.Parse(d.data)
	if err != nil {
		v.dev.count.dropMalformed.Add(1)
		return
	}
	q := v.last
	if q == nil || q.num != h.DestQP {
		if at := v.owner(h.DestQP); at != v.index {
			v.stray(at, d)
			return
		}
		q = v.lookup(h.DestQP)
	}
	if q == nil || !q.receives(h.Opcode) {
		v.dev.count.dropNoQP.Add(1)
		return
	}
	if !v.admits(q, h, d) {
		return
	}
	id, ok := v.verifier(d).Verify(v.nextID, d.data)
	if !ok {
		v.dev.count.dropICRC.Add(1)
		return
	}
	v.nextID = id + 1
	if !q.plausible(h) {
		v.dev.count.dropUnexpected.Add(1)
		return
	}
	if d.ce {
		q.congested()
	}
	q.receive(h, payload, d)
}

// admits checks the keys and the source of a packet.
func (v *vector) admits(q *qp, h *wire.Header, d *datagram) bool {
	if !q.guard.member(h.PKey) {
		v.dev.count.dropKey.Add(1)
		return false
	}
	if q.datagrams() {
		if h.QKey != q.attr.QKey {
			v.dev.count.dropKey.Add(1)
			return false
		}
		return true
	}
	if d.src.Addr() != q.av.dst.Addr() || d.local != q.av.local || !q.guard.comesFrom(d.src.Port()) {
		v.dev.count.dropSource.Add(1)
		return false
	}
	return true
}

// owner returns the vector of a queue pair; for queue pair 1 it is this vector while the device has none.
func (v *vector) owner(qpn uint32) int {
	if qpn != gsiQPN {
		return vectorOf(qpn, v.dev.cfg.Vectors)
	}
	if at := int(v.dev.gsiVector.Load()); at >= 0 {
		return at
	}
	return v.index
}

// stray passes a datagram to the vector that it is for.
func (v *vector) stray(to int, d *datagram) {
	o := v.dev.vectors[to]
	o.strayMu.Lock()
	defer o.strayMu.Unlock()
	if o.closed || len(o.strays) >= strayLimit {
		v.dev.count.dropStray.Add(1)
		return
	}
	s := stray{d: *d, data: bytes.Clone(d.data)}
	o.strays = append(o.strays, s)
	if !o.strayed.Swap(true) {
		_, _ = unix.Write(o.wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (v *vector) takeStrays() bool {
	if !v.strayed.Load() {
		return false
	}
	v.strayMu.Lock()
	list := v.strays
	v.strays = nil
	v.strayed.Store(false)
	v.strayMu.Unlock()
	for i := range list {
		list[i].d.data = list[i].data
		v.deliver(&list[i].d)
	}
	return len(list) > 0
}
