package verbs

import "fmt"

// rule is the set of attributes that a transition must and may set besides the state.
type rule struct {
	required, optional QPAttrMask
}

type step struct {
	from, to QPState
}

const (
	maskBase   = QPAttrPKeyIndex | QPAttrPort
	maskAccess = QPAttrAccess
	maskRNR    = QPAttrMinRNRTimer
	maskRTRRC  = QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRDAtomic | maskRNR
	maskRTRUC  = QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN
	maskRTSRC  = QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRDAtomic
)

// The columns of ibv_modify_qp(3), which are table 91 of IBTA vol. 1 and qp_state_table of the Linux kernel, without SQD.
// A transition to RESET or ERR is legal from every state, with no attribute.
var (
	rcRules = map[step]rule{
		{QPSReset, QPSInit}: {required: maskBase | maskAccess},
		{QPSInit, QPSInit}:  {optional: maskBase | maskAccess},
		{QPSInit, QPSRTR}:   {required: maskRTRRC, optional: maskAccess | QPAttrPKeyIndex},
		{QPSRTR, QPSRTS}:    {required: maskRTSRC, optional: QPAttrCurState | maskAccess | maskRNR},
		{QPSRTS, QPSRTS}:    {optional: QPAttrCurState | maskAccess | maskRNR},
	}
	ucRules = map[step]rule{
		{QPSReset, QPSInit}: {required: maskBase | maskAccess},
		{QPSInit, QPSInit}:  {optional: maskBase | maskAccess},
		{QPSInit, QPSRTR}:   {required: maskRTRUC, optional: maskAccess | QPAttrPKeyIndex},
		{QPSRTR, QPSRTS}:    {required: QPAttrSQPSN, optional: QPAttrCurState | maskAccess},
		{QPSRTS, QPSRTS}:    {optional: QPAttrCurState | maskAccess},
		{QPSSQE, QPSRTS}:    {optional: QPAttrCurState | maskAccess},
	}
	udRules = map[step]rule{
		{QPSReset, QPSInit}: {required: maskBase | QPAttrQKey},
		{QPSInit, QPSInit}:  {optional: maskBase | QPAttrQKey},
		{QPSInit, QPSRTR}:   {optional: QPAttrPKeyIndex | QPAttrQKey},
		{QPSRTR, QPSRTS}:    {required: QPAttrSQPSN, optional: QPAttrCurState | QPAttrQKey},
		{QPSRTS, QPSRTS}:    {optional: QPAttrCurState | QPAttrQKey},
		{QPSSQE, QPSRTS}:    {optional: QPAttrCurState | QPAttrQKey},
	}
)

// rulesOf returns the column of a transport. The general services queue pair
// is a UD queue pair.
func rulesOf(t QPType) map[step]rule {
	switch t {
	case QPTRC:
		return rcRules
	case QPTUC:
		return ucRules
	case QPTUD, QPTGSI:
		return udRules
	}
	return nil
}

// CheckTransition checks whether a queue pair of type t in state from may be modified with attr and mask, and returns
// its new state. Without QPAttrState in the mask the state stays and the rules of from to from apply. Devices call it
// first in Modify.
func CheckTransition(t QPType, from QPState, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	rules := rulesOf(t)
	if rules == nil {
		return from, fmt.Errorf("modify %v queue pair: %w", t, ErrNotSupported)
	}
	to := from
	if mask&QPAttrState != 0 {
		to = attr.State
	}
	if mask&QPAttrCurState != 0 && attr.CurState != from {
		return from, fmt.Errorf("current state is %v, not %v: %w", from, attr.CurState, ErrTransition)
	}
	r, ok := rules[step{from, to}]
	if !ok {
		ok = mask&QPAttrState != 0 && (to == QPSReset || to == QPSErr)
	}
	if !ok {
		return from, fmt.Errorf("%v to %v: %w", from, to, ErrTransition)
	}
	return to, checkMask(step{from, to}, r, mask&^QPAttrState)
}

func checkMask(s step, r rule, mask QPAttrMask) error {
	if missing := r.required &^ mask; missing != 0 {
		return fmt.Errorf("%v to %v without attributes %#x: %w", s.from, s.to, uint32(missing), ErrTransition)
	}
	if extra := mask &^ (r.required | r.optional); extra != 0 {
		return fmt.Errorf("%v to %v with attributes %#x: %w", s.from, s.to, uint32(extra), ErrTransition)
	}
	return nil
}

// CheckAttr returns ErrInvalid for attributes whose value is out of range on every device. Devices call it after
// CheckTransition.
func CheckAttr(a *QPAttr, mask QPAttrMask) error {
	has := func(m QPAttrMask) bool { return mask&m != 0 }
	switch {
	case has(QPAttrPort) && a.Port != 1,
		has(QPAttrPathMTU) && a.PathMTU.Bytes() == 0,
		has(QPAttrMinRNRTimer) && a.MinRNRTimer > 31,
		has(QPAttrRNRRetry) && a.RNRRetry > 7,
		has(QPAttrRetryCnt) && a.RetryCnt > 7,
		has(QPAttrTimeout) && a.Timeout > 31,
		has(QPAttrDestQPN) && a.DestQPNum > 0xffffff,
		has(QPAttrRQPSN) && a.RQPSN > 0xffffff,
		has(QPAttrSQPSN) && a.SQPSN > 0xffffff:
		return fmt.Errorf("queue pair attributes %+v: %w", *a, ErrInvalid)
	}
	return nil
}

// CheckPartition returns ErrInvalid for a P_Key index beyond a table of the given size. Devices call it after
// CheckAttr.
func CheckPartition(a *QPAttr, mask QPAttrMask, entries int) error {
	if mask&QPAttrPKeyIndex != 0 && int(a.PKeyIndex) >= entries {
		return fmt.Errorf("P_Key index %d of %d: %w", a.PKeyIndex, entries, ErrInvalid)
	}
	return nil
}

// Apply sets the attributes in mask on q, except the state.
func (q *QPAttr) Apply(a *QPAttr, mask QPAttrMask) {
	set(&q.Access, a.Access, mask&QPAttrAccess)
	set(&q.PKeyIndex, a.PKeyIndex, mask&QPAttrPKeyIndex)
	set(&q.Port, a.Port, mask&QPAttrPort)
	set(&q.QKey, a.QKey, mask&QPAttrQKey)
	set(&q.AH, a.AH, mask&QPAttrAV)
	set(&q.PathMTU, a.PathMTU, mask&QPAttrPathMTU)
	set(&q.Timeout, a.Timeout, mask&QPAttrTimeout)
	set(&q.RetryCnt, a.RetryCnt, mask&QPAttrRetryCnt)
	set(&q.RNRRetry, a.RNRRetry, mask&QPAttrRNRRetry)
	set(&q.RQPSN, a.RQPSN, mask&QPAttrRQPSN)
	set(&q.MaxRDAtomic, a.MaxRDAtomic, mask&QPAttrMaxRDAtomic)
	set(&q.MinRNRTimer, a.MinRNRTimer, mask&QPAttrMinRNRTimer)
	set(&q.SQPSN, a.SQPSN, mask&QPAttrSQPSN)
	set(&q.MaxDestRDAtomic, a.MaxDestRDAtomic, mask&QPAttrMaxDestRDAtomic)
	set(&q.DestQPNum, a.DestQPNum, mask&QPAttrDestQPN)
}

func set[T any](p *T, v T, on QPAttrMask) {
	if on != 0 {
		*p = v
	}
}
