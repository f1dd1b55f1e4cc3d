package verbstest

import "github.com/smcgw/smcgw/verbs"

const bothWrite = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// testQKey is the key of UD queue pairs; gsiQKey the well-known one of the
// general services interface (IBTA vol. 1, 10.2.5; rocev2.md 8.5).
const (
	testQKey = 0x1234
	gsiQKey  = 0x80010000
)

// leg is one step to RTS with all its required attributes.
type leg struct {
	to   verbs.QPState
	mask verbs.QPAttrMask
}

// legs are the steps of a queue pair of each transport from RESET to RTS (ibv_modify_qp(3), IBTA vol. 1, table 91).
var legs = map[verbs.QPType][]leg{
	verbs.QPTRC:  {{verbs.QPSInit, verbs.InitMask}, {verbs.QPSRTR, verbs.RTRMask}, {verbs.QPSRTS, verbs.RTSMask}},
	verbs.QPTUC:  {{verbs.QPSInit, verbs.InitMask}, {verbs.QPSRTR, verbs.UCRTRMask}, {verbs.QPSRTS, verbs.SQPSNMask}},
	verbs.QPTUD:  {{verbs.QPSInit, verbs.UDInitMask}, {verbs.QPSRTR, verbs.QPAttrState}, {verbs.QPSRTS, verbs.SQPSNMask}},
	verbs.QPTGSI: {{verbs.QPSInit, verbs.UDInitMask}, {verbs.QPSRTR, verbs.QPAttrState}, {verbs.QPSRTS, verbs.SQPSNMask}},
}

func (e *env) attr(s *Side, dest uint32) verbs.QPAttr {
	if e.pair.Attr != nil {
		return e.pair.Attr(s, dest)
	}
	return verbs.ConnectAttr(dest)
}

func (d *end) qkey() uint32 {
	if d.typ == verbs.QPTGSI {
		return gsiQKey
	}
	return testQKey
}

// attrs returns everything that a queue pair of the end needs on its way to RTS as the partner of queue pair dest.
func (d *end) attrs(dest uint32) verbs.QPAttr {
	attr := d.e.attr(d.Side, dest)
	attr.Port, attr.Access, attr.QKey = 1, d.rights(), d.qkey()
	return attr
}

// step makes one step of a queue pair.
func (d *end) step(qp verbs.QP, attr verbs.QPAttr, to verbs.QPState) {
	d.e.t.Helper()
	for _, l := range legs[qp.Type()] {
		if l.to == to {
			attr.State = to
			d.e.NoError(qp.Modify(&attr, l.mask), "%v to %v", qp.Type(), to)
		}
	}
	d.e.Equal(to, qp.State())
}

// init moves the end's queue pair to INIT with all rights for the peer.
func (d *end) init() {
	d.e.t.Helper()
	d.step(d.qp, d.attrs(0), verbs.QPSInit)
}

// connect moves both queue pairs to RTS; change may alter the attributes of both.
func (e *env) connect(change ...func(*verbs.QPAttr)) {
	e.t.Helper()
	e.a.init()
	e.b.init()
	e.join(change...)
}

// join moves both from INIT to RTS, B first.
func (e *env) join(change ...func(*verbs.QPAttr)) {
	e.t.Helper()
	e.link(e.b, e.b.qp, e.a.qp.Num(), change...)
	e.link(e.a, e.a.qp, e.b.qp.Num(), change...)
}

// link moves a queue pair of an end from INIT to RTS.
func (e *env) link(d *end, qp verbs.QP, dest uint32, change ...func(*verbs.QPAttr)) {
	e.t.Helper()
	attr := d.attrs(dest)
	for _, f := range change {
		f(&attr)
	}
	d.step(qp, attr, verbs.QPSRTR)
	d.step(qp, attr, verbs.QPSRTS)
}

// second gives both ends another queue pair, connected to each other.
func (e *env) second(a, b verbs.QPInitAttr) (verbs.QP, verbs.QP) {
	e.t.Helper()
	qa, qb := own(e.a, e.a.newQP(a)), own(e.b, e.b.newQP(b))
	e.a.step(qa, e.a.attrs(0), verbs.QPSInit)
	e.b.step(qb, e.b.attrs(0), verbs.QPSInit)
	e.link(e.b, qb, qa.Num())
	e.link(e.a, qa, qb.Num())
	return qa, qb
}

// soon makes a requester give up quickly on a peer that does not answer: after a few times 4.2 ms.
func soon(a *verbs.QPAttr) { a.Timeout, a.RetryCnt = 10, 2 }

// firstPSN makes both directions start at a PSN.
func firstPSN(psn uint32) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.SQPSN, a.RQPSN = psn, psn }
}

// pathMTU sets the path MTU.
func pathMTU(m verbs.MTU) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.PathMTU = m }
}

// to makes a Modify that changes only the state.
func (d *end) to(s verbs.QPState) {
	d.e.t.Helper()
	d.e.NoError(d.qp.Modify(&verbs.QPAttr{State: s}, verbs.QPAttrState), "%v to %v", d.qp.State(), s)
}

// handle returns the address handle of the other end.
func (d *end) handle() verbs.AH {
	d.e.t.Helper()
	if d.ah == nil {
		ah, err := d.PD.CreateAH(d.e.attr(d.Side, 0).AH)
		d.e.NoError(err)
		d.ah = own(d, ah)
	}
	return d.ah
}
