package rsocket

import (
	"bytes"
	"errors"
	"slices"

	"github.com/smcgw/smcgw/verbs"
)

// fakeNet is a fake device: registered memory by key, and queue pairs joined in pairs whose work moves only when a test
// moves it. Payload is read when a write is executed, as DMA does, so that memory reused too early shows.
type fakeNet struct {
	regions []*fakeMR
}

type fakeMR struct {
	f    *fakeNet
	buf  []byte
	addr uint64
	key  uint32
}

func (f *fakeNet) AllocMR(size int, _ verbs.Access) (verbs.MR, error) {
	n := len(f.regions) + 1
	mr := &fakeMR{f: f, buf: make([]byte, size), addr: uint64(n) << 32, key: uint32(n)}
	f.regions = append(f.regions, mr)
	return mr, nil
}

func (m *fakeMR) Bytes() []byte { return m.buf }
func (m *fakeMR) Addr() uint64  { return m.addr }
func (m *fakeMR) LKey() uint32  { return m.key }
func (m *fakeMR) RKey() uint32  { return m.key }
func (m *fakeMR) Close() error {
	m.f.regions[m.key-1] = nil
	return nil
}

// resolve returns n bytes at addr, or an error for what is not registered.
func (f *fakeNet) resolve(key uint32, addr uint64, n int) ([]byte, error) {
	if key == 0 || int(key) > len(f.regions) || f.regions[key-1] == nil {
		return nil, verbs.ErrAccess
	}
	m := f.regions[key-1]
	if addr < m.addr || addr+uint64(n) > m.addr+uint64(len(m.buf)) {
		return nil, verbs.ErrAccess
	}
	return m.buf[addr-m.addr:][:n], nil
}

type fakeQP struct {
	net   *fakeNet
	cap   verbs.QPCap
	state verbs.QPState
	peer  *fakeQP

	// sends waits for execution, executed counts what waits for its completion to be polled; both occupy the queue.
	sends              []fakeWR
	executed           int
	recvs              int
	cq                 []verbs.WC
	rnr, pushes, ctrls int
	inlines            int
	postErr            error
	unbound            bool
}

type fakeWR struct {
	verbs.SendWR
	sge    verbs.SGE
	inline []byte
}

// mapQP is a queue pair that shows its peer's memory.
type mapQP struct{ *fakeQP }

func (q mapQP) MapRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	if q.state == verbs.QPSErr || q.unbound {
		return nil, verbs.ErrRemoteGone
	}
	return q.net.resolve(rkey, addr, n)
}

func (q mapQP) ReadRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	return q.net.resolve(rkey, addr, n)
}

func newQPs(f *fakeNet, a, b verbs.QPCap) (*fakeQP, *fakeQP) {
	x := &fakeQP{net: f, cap: a, state: verbs.QPSInit}
	y := &fakeQP{net: f, cap: b, state: verbs.QPSInit, peer: x}
	x.peer = y
	return x, y
}

func (q *fakeQP) Num() uint32                                      { return 1 }
func (q *fakeQP) Type() verbs.QPType                               { return verbs.QPTRC }
func (q *fakeQP) State() verbs.QPState                             { return q.state }
func (q *fakeQP) Query() verbs.QPAttr                              { return verbs.QPAttr{} }
func (q *fakeQP) Modify(a *verbs.QPAttr, _ verbs.QPAttrMask) error { q.state = a.State; return nil }
func (q *fakeQP) Close() error                                     { return nil }
func (q *fakeQP) complete(wc verbs.WC)                             { q.cq = append(q.cq, wc) }
func (q *fakeQP) flush(id uint64)                                  { q.complete(verbs.WC{WRID: id, Status: verbs.WCWRFlushErr}) }

func (q *fakeQP) local(wr *fakeWR) ([]byte, error) {
	if wr.Flags&verbs.SendInline != 0 {
		return wr.inline, nil
	}
	if len(wr.SGList) == 0 {
		return nil, nil
	}
	return q.net.resolve(wr.sge.LKey, wr.sge.Addr, int(wr.sge.Length))
}

func (q *fakeQP) PostRecv(*verbs.RecvWR) error {
	if q.recvs == q.cap.MaxRecvWR {
		return verbs.ErrQueueFull
	}
	q.recvs++
	return nil
}

func (q *fakeQP) PostSend(wr *verbs.SendWR) error {
	switch {
	case q.postErr != nil:
		return q.postErr
	case q.state != verbs.QPSRTS:
		return verbs.ErrState
	case len(q.sends)+q.executed >= q.cap.MaxSendWR:
		return verbs.ErrQueueFull
	case len(wr.SGList) > 1, wr.Flags&verbs.SendInline != 0 && (len(wr.SGList) > 0 || len(wr.Inline) > q.cap.MaxInline):
		return verbs.ErrInvalid
	}
	w := fakeWR{SendWR: *wr}
	if wr.Flags&verbs.SendInline != 0 {
		w.inline, w.Inline = bytes.Clone(wr.Inline), nil // copied before PostSend returns
		q.inlines++
	}
	if len(wr.SGList) == 1 {
		w.sge = wr.SGList[0]
		if wr.Flags&verbs.SendMapped != 0 && (w.sge.Addr != wr.RemoteAddr || w.sge.LKey != wr.RKey) {
			return errors.New("mapped write with different addresses")
		}
	}
	if wr.Flags&verbs.SendPush != 0 {
		q.pushes++
	}
	q.sends = append(q.sends, w)
	return nil
}

// transfer executes the oldest send; false if none or the peer has no receive posted.
func (q *fakeQP) transfer() bool {
	if len(q.sends) == 0 || q.unbound {
		return false
	}
	wr := q.sends[0]
	imm := wr.Opcode == verbs.WRRDMAWriteWithImm
	if imm && q.peer.recvs == 0 {
		q.rnr++
		return false
	}
	q.sends = slices.Delete(q.sends, 0, 1)
	q.executed++
	src, err := q.local(&wr)
	if err == nil && wr.Flags&verbs.SendMapped == 0 && len(src) > 0 {
		var dst []byte
		if dst, err = q.net.resolve(wr.RKey, wr.RemoteAddr, len(src)); err == nil {
			copy(dst, src)
		}
	}
	if err != nil {
		q.fail(wr.WRID)
		return true
	}
	if imm {
		q.peer.recvs--
		q.peer.complete(verbs.WC{
			WRID: RecvID, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: wr.ImmData, ByteLen: uint32(len(src)),
		})
		if Imm(wr.ImmData).Op() != OpData {
			q.ctrls++
		}
	}
	if wr.Flags&verbs.SendSignaled != 0 {
		q.complete(verbs.WC{WRID: wr.WRID, Opcode: verbs.WCRDMAWrite})
	}
	return true
}

// fail moves both ends to ERR after a send that could not be executed.
func (q *fakeQP) fail(id uint64) {
	q.complete(verbs.WC{WRID: id, Status: verbs.WCRemAccessErr})
	q.down()
	q.peer.down()
}

// down moves the queue pair to ERR and flushes it.
func (q *fakeQP) down() {
	q.state = verbs.QPSErr
	for _, wr := range q.sends {
		q.flush(wr.WRID)
	}
	for range q.recvs {
		q.flush(RecvID)
	}
	q.sends, q.recvs = nil, 0
}

// poll takes the oldest completion. A polled send frees the queue entries up to it.
func (q *fakeQP) poll() (verbs.WC, bool) {
	if len(q.cq) == 0 {
		return verbs.WC{}, false
	}
	wc := q.cq[0]
	q.cq = slices.Delete(q.cq, 0, 1)
	if wc.WRID&RecvID == 0 {
		q.executed = 0
		for _, later := range q.cq { // those after it still wait
			if later.WRID&RecvID == 0 {
				q.executed++
			}
		}
	}
	return wc, true
}
