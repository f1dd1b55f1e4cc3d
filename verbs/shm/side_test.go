package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// side is one of two devices whose drivers move only when the test says so, with
// one CQ and one region for all its queue pairs.
type side struct {
	*require.Assertions
	t    testing.TB
	d    *Device
	p    *Peer
	drv  verbs.Driver
	cq   verbs.CQ
	mr   verbs.MR
	ah   verbs.AH
	send []verbs.WC
	recv []verbs.WC
}

const allRights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func newSides(t testing.TB) (a, b *side) {
	da, db, pa, pb := met(t)
	return newSide(t, da, pa), newSide(t, db, pb)
}

func newSide(t testing.TB, d *Device, p *Peer) *side {
	s := &side{Assertions: require.New(t), t: t, d: d, p: p, drv: drive(t, d, 0)}
	var err error
	s.cq, err = d.CreateCQ(verbs.CQAttr{Depth: 1024})
	s.NoError(err)
	s.mr, err = p.PD().AllocMR(1<<20, allRights)
	s.NoError(err)
	s.ah, err = p.PD().CreateAH(verbs.AHAttr{})
	s.NoError(err)
	t.Cleanup(func() { _ = s.mr.Close(); _ = s.ah.Close() })
	return s
}

var sideCap = verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

func (s *side) qp(typ verbs.QPType) *qp {
	s.t.Helper()
	q, err := s.p.PD().CreateQP(&verbs.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Type: typ, SQSigAll: true, Cap: sideCap})
	s.NoError(err)
	s.t.Cleanup(func() { _ = q.Close() })
	return q.(*qp)
}

// rc makes a connected pair.
func rc(a, b *side, change ...func(*verbs.QPAttr)) (qa, qb *qp) {
	qa, qb = a.qp(verbs.QPTRC), b.qp(verbs.QPTRC)
	a.NoError(verbs.Init(qa, allRights))
	b.NoError(verbs.Init(qb, allRights))
	attr := verbs.ConnectAttr(qb.num)
	for _, f := range change {
		f(&attr)
	}
	a.NoError(verbs.Connect(qa, attr))
	attr.DestQPNum = qa.num
	b.NoError(verbs.Connect(qb, attr))
	return qa, qb
}

const sideKey = 7

func (s *side) ud() *qp {
	q := s.qp(verbs.QPTUD)
	s.NoError(verbs.StartUD(q, sideKey, 0))
	return q
}

func (s *side) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}}
}

// turn drives the side once and collects completions.
func (s *side) turn() {
	s.drv.Progress(time.Now())
	s.poll()
	s.drv.Flush()
}

func (s *side) poll() {
	var wcs [64]verbs.WC
	for n := len(wcs); n == len(wcs); {
		n, _ = s.cq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			// Of an error the opcode means nothing, but here it is right.
			if wc.Opcode >= verbs.WCRecv {
				s.recv = append(s.recv, wc)
			} else {
				s.send = append(s.send, wc)
			}
		}
	}
}

func (s *side) clear() { s.send, s.recv = nil, nil }

// settle drives both until all has been seen.
func settle(a, b *side) {
	for range 6 {
		a.turn()
		b.turn()
	}
}

func statuses(wcs []verbs.WC) (st []verbs.WCStatus) {
	for _, wc := range wcs {
		st = append(st, wc.Status)
	}
	return st
}

func imms(wcs []verbs.WC) (v []uint32) {
	for _, wc := range wcs {
		v = append(v, wc.ImmData)
	}
	return v
}

// write is a WRITE, or one with an immediate, of n bytes to the same place of the peer's.
func (s *side) write(op verbs.WROpcode, to *side, off, n int) *verbs.SendWR {
	return &verbs.SendWR{Opcode: op, SGList: s.sge(off, n), RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey()}
}

// imm is a WRITE_WITH_IMM without data.
func imm(v uint32) *verbs.SendWR {
	return &verbs.SendWR{WRID: uint64(v), Opcode: verbs.WRRDMAWriteWithImm, ImmData: v}
}
