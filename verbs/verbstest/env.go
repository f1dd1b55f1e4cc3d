package verbstest

import (
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// env is a pair with one queue pair on each side, RC unless use changed it.
type env struct {
	*require.Assertions
	t    testing.TB
	pair *Pair
	a, b *end
}

// end is a side with a queue pair, its CQs and a region that both sides may write.
type end struct {
	*Side
	e        *env
	peer     *end
	typ      verbs.QPType
	scq, rcq verbs.CQ
	qp       verbs.QP
	mr       verbs.MR
	ah       verbs.AH           // of the other end, made when needed
	wcs      []verbs.WC         // completions of the send CQ
	recvs    []verbs.WC         // completions of the receive CQ
	events   []verbs.AsyncEvent // not checked yet
	owned    []io.Closer
}

const regionSize = 1 << 20

var testCap = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}

func newEnv(t testing.TB, p *Pair) *env {
	e := &env{Assertions: require.New(t), t: t, pair: p}
	e.a, e.b = e.newEnd(&p.A), e.newEnd(&p.B)
	e.a.peer, e.b.peer = e.b, e.a
	return e
}

func (e *env) newEnd(s *Side) *end {
	d := &end{Side: s, e: e, typ: verbs.QPTRC}
	d.scq, d.rcq = d.newCQ(64), d.newCQ(64)
	var err error
	d.mr, err = s.PD.AllocMR(regionSize, d.rights())
	e.NoError(err)
	d.qp = d.newQP(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.t.Cleanup(func() {
		e.NoError(d.qp.Close())
		for _, c := range slices.Backward(d.owned) {
			e.NoError(c.Close())
		}
		e.NoError(d.mr.Close())
	})
	return d
}

// own closes c at the end of the test, after the end's queue pair and in reverse order.
func own[T io.Closer](d *end, c T) T {
	d.owned = append(d.owned, c)
	return c
}

func (d *end) newCQ(depth int) verbs.CQ {
	cq, err := d.Device.CreateCQ(verbs.CQAttr{Depth: depth})
	d.e.NoError(err)
	return own(d, cq)
}

// complete sets the type and the CQs that attr leaves to the end.
func (d *end) complete(attr verbs.QPInitAttr) *verbs.QPInitAttr {
	if attr.Type == 0 {
		attr.Type = d.typ
	}
	if attr.SendCQ == nil {
		attr.SendCQ = d.scq
	}
	if attr.RecvCQ == nil {
		attr.RecvCQ = d.rcq
	}
	return &attr
}

// newQP creates a queue pair of the end's type, on its CQs unless attr has others.
func (d *end) newQP(attr verbs.QPInitAttr) verbs.QP {
	d.e.t.Helper()
	qp, err := d.PD.CreateQP(d.complete(attr))
	d.e.NoError(err)
	return qp
}

// replace gives the end another queue pair.
func (d *end) replace(attr verbs.QPInitAttr) {
	d.e.t.Helper()
	d.e.NoError(d.qp.Close())
	d.qp = d.newQP(attr)
}

// renew gives both ends new queue pairs and discards all completions.
func (e *env) renew() {
	e.t.Helper()
	for _, d := range e.ends() {
		d.wcs, d.recvs, d.events = nil, nil, nil
		d.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	}
	e.settle() // what was queued
	e.a.wcs, e.a.recvs, e.b.wcs, e.b.recvs = nil, nil, nil, nil
}

func (e *env) ends() [2]*end { return [2]*end{e.a, e.b} }

// has reports whether the device of the end supports an operation.
func (d *end) has(op verbs.Ops) bool { return d.Device.Attr().Ops&op != 0 }

// networked reports whether the device has addresses, like a port of a network.
func (d *end) networked() bool { return len(d.Device.Port().GIDs) > 0 }

// rights returns everything that the device can grant.
func (d *end) rights() verbs.Access {
	a := bothWrite
	if d.has(verbs.OpRDMARead) {
		a |= verbs.AccessRemoteRead
	}
	if d.has(verbs.OpAtomic) {
		a |= verbs.AccessRemoteAtomic
	}
	return a
}

// use gives both ends queue pairs of a transport. A device without it must
// refuse to create one; use then returns false.
func (e *env) use(typ verbs.QPType) bool {
	e.t.Helper()
	have := true
	switch typ {
	case verbs.QPTUC:
		have = e.a.has(verbs.OpUC)
	case verbs.QPTUD:
		have = e.a.has(verbs.OpUD)
	case verbs.QPTGSI:
		have = e.a.has(verbs.OpGSI)
	default:
	}
	if !have {
		_, err := e.a.PD.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap, Type: typ}))
		e.ErrorIs(err, verbs.ErrNotSupported, "%v", typ)
		return false
	}
	e.a.typ, e.b.typ = typ, typ
	e.renew()
	return true
}

// can reports whether the device supports an operation on RC queue pairs, and connects two for it. A device without it
// must refuse to post it.
func (e *env) can(op verbs.Ops, opcodes ...verbs.WROpcode) bool {
	e.t.Helper()
	e.connect()
	if e.a.has(op) {
		return true
	}
	for _, o := range opcodes {
		e.ErrorIs(e.a.qp.PostSend(e.a.write(o, 1, e.b, 0, 8)), verbs.ErrNotSupported, "%v", o)
	}
	e.settle()
	e.Empty(e.a.wcs, "refused, yet completed")
	return false
}

// transports are those with which two queue pairs can be connected or exchange datagrams.
var transports = []verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD, verbs.QPTGSI}

// each runs f with fresh queue pairs of each of the transports the device has.
func (e *env) each(types []verbs.QPType, f func()) {
	for _, typ := range types {
		if e.use(typ) {
			f()
		}
	}
}
