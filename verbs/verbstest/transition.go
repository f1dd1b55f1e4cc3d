package verbstest

import "github.com/smcgw/smcgw/verbs"

var transitionTests = []test{
	{"RequiredAttributes", testRequiredAttributes},
	{"Illegal", testIllegalTransitions},
	{"CurState", testCurState},
	{"Values", testAttributeValues},
	{"Query", testQuery},
	{"QueryReset", testQueryReset},
	{"AttributesOnly", testAttributesOnly},
}

// IBTA vol. 1, table 91 and ibv_modify_qp(3), for every transport: each missing required attribute, and each attribute
// that is not allowed, is refused and changes nothing.
func testRequiredAttributes(e *env) {
	e.each(transports, func() {
		e.b.init()
		attr := e.a.attrs(e.b.qp.Num())
		for _, s := range legs[e.a.typ] {
			attr.State = s.to
			before := e.a.qp.State()
			for bit := verbs.QPAttrMask(2); bit < 1<<21; bit <<= 1 {
				switch {
				case s.mask&bit != 0:
					e.ErrorIs(e.a.qp.Modify(&attr, s.mask&^bit), verbs.ErrTransition, "%v to %v without %#x", e.a.typ, s.to, bit)
				case foreign(e.a.typ, s.to)&bit != 0:
					e.ErrorIs(e.a.qp.Modify(&attr, s.mask|bit), verbs.ErrTransition, "%v to %v with %#x", e.a.typ, s.to, bit)
				}
				e.Equal(before, e.a.qp.State())
			}
			e.NoError(e.a.qp.Modify(&attr, s.mask))
			e.Equal(s.to, e.a.qp.State())
		}
	})
}

// foreign are attributes that a transport must not be given on its way to RTS:
// UD has no connection, UC no acknowledgements, neither RC nor UC a Q_Key.
func foreign(typ verbs.QPType, to verbs.QPState) verbs.QPAttrMask {
	const reliable = verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxRDAtomic |
		verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	const connected = verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN | verbs.QPAttrAccess
	switch {
	case typ == verbs.QPTUD || typ == verbs.QPTGSI:
		return reliable | connected
	case typ == verbs.QPTUC:
		return reliable | verbs.QPAttrQKey
	case to == verbs.QPSInit:
		return verbs.QPAttrQKey | verbs.QPAttrAV | verbs.QPAttrDestQPN | verbs.QPAttrSQPSN | verbs.QPAttrTimeout
	}
	return verbs.QPAttrQKey | verbs.QPAttrPort
}

// next lists the states that a Modify can reach from another one; RESET and ERR can be reached from every state (IBTA
// vol. 1, figure 124). SQE is entered only by an error, and left in the tests of UC and UD.
var next = map[verbs.QPState][]verbs.QPState{
	verbs.QPSReset: {verbs.QPSInit},
	verbs.QPSInit:  {verbs.QPSInit, verbs.QPSRTR},
	verbs.QPSRTR:   {verbs.QPSRTS},
	verbs.QPSRTS:   {verbs.QPSRTS},
	verbs.QPSErr:   {},
}

// All pairs of states of every transport.
func testIllegalTransitions(e *env) {
	e.each(transports, func() {
		e.b.init()
		attr := e.a.attrs(e.b.qp.Num())
		for _, from := range []verbs.QPState{verbs.QPSReset, verbs.QPSInit, verbs.QPSRTR, verbs.QPSRTS, verbs.QPSErr} {
			switch from {
			case verbs.QPSReset:
			case verbs.QPSErr:
				e.a.to(from)
			default:
				e.a.step(e.a.qp, attr, from)
			}
			e.refusesTransitions(attr, from)
		}
		e.a.to(verbs.QPSErr)
		e.a.to(verbs.QPSReset)
		e.a.to(verbs.QPSErr)
	})
}

func (e *env) refusesTransitions(attr verbs.QPAttr, from verbs.QPState) {
	e.t.Helper()
	legal := map[verbs.QPState]bool{verbs.QPSReset: true, verbs.QPSErr: true}
	for _, to := range next[from] {
		legal[to] = true
	}
	masks := map[verbs.QPState]verbs.QPAttrMask{}
	for _, l := range legs[e.a.typ] {
		masks[l.to] = l.mask
	}
	for to := range verbs.QPState(9) {
		if legal[to] {
			continue
		}
		attr.State = to
		e.ErrorIs(e.a.qp.Modify(&attr, masks[to]|verbs.QPAttrState), verbs.ErrTransition, "%v: %v to %v", e.a.typ, from, to)
		e.Equal(from, e.a.qp.State())
	}
}

// ibv_modify_qp(3): IBV_QP_CUR_STATE must be right.
func testCurState(e *env) {
	e.each(transports, func() {
		e.connect()
		mask := verbs.QPAttrState | verbs.QPAttrCurState
		e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS, CurState: verbs.QPSRTR}, mask), verbs.ErrTransition)
		e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS, CurState: verbs.QPSRTS}, mask))
	})
}

// Values out of range are invalid and change nothing: a port that does not
// exist, a P_Key index beyond the table, numbers wider than their field on the
// wire (IBTA vol. 1, 9.2 and 11.2.5.2).
func testAttributeValues(e *env) {
	bad := map[verbs.QPState][]func(*verbs.QPAttr){
		verbs.QPSInit: {
			func(a *verbs.QPAttr) { a.Port = 0 },
			func(a *verbs.QPAttr) { a.Port = 2 },
			func(a *verbs.QPAttr) { a.PKeyIndex = uint16(max(1, e.a.Device.Port().PKeys)) },
		},
		verbs.QPSRTR: {
			func(a *verbs.QPAttr) { a.PathMTU = 0 },
			func(a *verbs.QPAttr) { a.PathMTU = verbs.MTU4096 + 1 },
			func(a *verbs.QPAttr) { a.MinRNRTimer = 32 },
			func(a *verbs.QPAttr) { a.DestQPNum = 1 << 24 },
			func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 },
		},
		verbs.QPSRTS: {
			func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 },
			func(a *verbs.QPAttr) { a.RNRRetry = 8 },
			func(a *verbs.QPAttr) { a.RetryCnt = 8 },
			func(a *verbs.QPAttr) { a.Timeout = 32 },
		},
	}
	e.b.init()
	for _, l := range legs[verbs.QPTRC] {
		before := e.a.qp.Query()
		for i, change := range bad[l.to] {
			attr := e.a.attrs(e.b.qp.Num())
			attr.State = l.to
			change(&attr)
			e.ErrorIs(e.a.qp.Modify(&attr, l.mask), verbs.ErrInvalid, "to %v, %d", l.to, i)
			e.Equal(before, e.a.qp.Query())
		}
		e.a.step(e.a.qp, e.a.attrs(e.b.qp.Num()), l.to)
	}
}

// ibv_query_qp(3): the attributes are those that were set.
func testQuery(e *env) {
	e.each(transports, func() {
		want := verbs.QPAttr{}
		set := e.a.attrs(e.b.qp.Num())
		set.SQPSN, set.RQPSN = 0x123456, 0x654321
		set.Access = bothWrite
		e.b.init()
		for _, l := range legs[e.a.typ] {
			e.a.step(e.a.qp, set, l.to)
			want.Apply(&set, l.mask)
			want.State, want.CurState = l.to, l.to
			got := e.a.qp.Query()
			e.Equal(want.AH.DGID, got.AH.DGID)
			got.AH = want.AH // a device may fill in parts that were not set
			e.Equal(want, got)
		}
	})
}

// IBTA vol. 1, 10.3.1.1: RESET clears the attributes.
func testQueryReset(e *env) {
	e.each(transports, func() {
		e.Equal(verbs.QPAttr{}, e.a.qp.Query())
		e.connect()
		e.a.to(verbs.QPSReset)
		e.Equal(verbs.QPAttr{}, e.a.qp.Query())
	})
}

// A Modify without state sets attributes that the state permits (table 91, X to X).
func testAttributesOnly(e *env) {
	access := &verbs.QPAttr{Access: verbs.AccessLocalWrite}
	e.ErrorIs(e.a.qp.Modify(access, verbs.QPAttrAccess), verbs.ErrTransition, "in RESET")
	e.connect()
	e.NoError(e.a.qp.Modify(access, verbs.QPAttrAccess))
	e.Equal(verbs.AccessLocalWrite, e.a.qp.Query().Access)
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{MinRNRTimer: 3}, verbs.QPAttrMinRNRTimer))
	e.Equal(uint8(3), e.a.qp.Query().MinRNRTimer)
	e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{RetryCnt: 3}, verbs.QPAttrRetryCnt), verbs.ErrTransition, "in RTS")
	e.a.to(verbs.QPSErr)
	e.ErrorIs(e.a.qp.Modify(access, verbs.QPAttrAccess), verbs.ErrTransition, "in ERR")
}
