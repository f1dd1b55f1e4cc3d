package verbstest

import (
	"bytes"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// sge returns an SGE of a part of the end's region.
func (d *end) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: d.mr.Addr() + uint64(off), Length: uint32(n), LKey: d.mr.LKey()}
}

// sgeOf returns an SGE of the beginning of a region.
func sgeOf(mr verbs.MR, n int) verbs.SGE {
	return verbs.SGE{Addr: mr.Addr(), Length: uint32(n), LKey: mr.LKey()}
}

// bytes returns a part of the end's region.
func (d *end) bytes(off, n int) []byte { return d.mr.Bytes()[off : off+n] }

// recv posts a receive, and flushes: before that it may not be visible.
func (d *end) recv(id uint64, list ...verbs.SGE) {
	d.e.t.Helper()
	d.e.NoError(d.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: list}))
	d.Driver.Flush()
}

// write makes a work request on a part of the region and the same offset at the peer: a WRITE, or another operation
// with a remote address.
func (d *end) write(op verbs.WROpcode, id uint64, to *end, off, n int) *verbs.SendWR {
	return &verbs.SendWR{
		WRID: id, Opcode: op, SGList: []verbs.SGE{d.sge(off, n)}, ImmData: uint32(id) | 0x80000000,
		RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey(),
	}
}

// send makes a SEND of a part of the region, as a datagram on a UD queue pair. On a device without SEND on connections
// it is a WRITE_WITH_IMM to the same offset.
func (d *end) send(id uint64, off, n int) *verbs.SendWR {
	if d.typ != verbs.QPTUD && d.typ != verbs.QPTGSI && !d.has(verbs.OpSend) {
		return d.write(verbs.WRRDMAWriteWithImm, id, d.peer, off, n)
	}
	wr := &verbs.SendWR{WRID: id, Opcode: verbs.WRSend, SGList: []verbs.SGE{d.sge(off, n)}}
	if d.typ == verbs.QPTUD || d.typ == verbs.QPTGSI {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = d.handle(), d.peer.qp.Num(), d.qkey()
	}
	return wr
}

func (d *end) post(wr *verbs.SendWR) {
	d.e.t.Helper()
	d.e.NoError(d.qp.PostSend(wr))
}

// alloc makes another region, of 4096 bytes, closed at the end of the test.
func (d *end) alloc(access verbs.Access) verbs.MR {
	d.e.t.Helper()
	mr, err := d.PD.AllocMR(4096, access)
	d.e.NoError(err)
	return own(d, mr)
}

// good checks that the first n send completions are successes of the work
// requests 0 to n-1.
func (d *end) good(n int) {
	d.e.t.Helper()
	d.sent(n)
	for i, wc := range d.wcs[:n] {
		d.e.Equal(uint64(i), wc.WRID)
		d.e.Equal(verbs.WCSuccess, wc.Status)
	}
}

func fill(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// same is Equal for memory; it reports the first difference instead of printing everything.
func (e *env) same(want, got []byte, what ...any) {
	e.t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	e.Len(got, len(want), what...)
	for i := range want {
		if want[i] != got[i] {
			e.Fail(fmt.Sprintf("byte %d of %d is %#x, want %#x", i, len(want), got[i], want[i]), what...)
		}
	}
}
