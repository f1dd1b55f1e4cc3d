package verbs

import "fmt"

// rule says which attributes a transition must and may set besides the state.
type rule struct {
	required, optional QPAttrMask
}

type step struct {
	from, to QPState
}

// rcRules is the RC column of ibv_modify_qp(3), which is table 91 of IBTA vol. 1
// and qp_state_table of the Linux kernel. To RESET and ERR is legal from
// everywhere, with no attribute.
func rcRules(s step) (rule, bool) {
	const access, rnr = QPAttrAccess, QPAttrMinRNRTimer
	switch s {
	case step{QPSReset, QPSInit}:
		return rule{required: QPAttrPKeyIndex | QPAttrPort | access}, true
	case step{QPSInit, QPSInit}:
		return rule{optional: QPAttrPKeyIndex | QPAttrPort | access}, true
	case step{QPSInit, QPSRTR}:
		return rule{
			required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRDAtomic | rnr,
			optional: access | QPAttrPKeyIndex,
		}, true
	case step{QPSRTR, QPSRTS}:
		return rule{
			required: QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRDAtomic,
			optional: QPAttrCurState | access | rnr,
		}, true
	case step{QPSRTS, QPSRTS}, step{QPSSQD, QPSRTS}:
		return rule{optional: QPAttrCurState | access | rnr}, true
	case step{QPSRTS, QPSSQD}:
		return rule{}, true
	case step{QPSSQD, QPSSQD}:
		return rule{
			optional: QPAttrAV | QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxRDAtomic |
				QPAttrMaxDestRDAtomic | QPAttrPKeyIndex | QPAttrPort | access | rnr,
		}, true
	}
	return rule{}, false
}

// CheckTransition decides whether a queue pair of type t in state from may be
// modified with attr and mask, and returns the state it will have. Without
// QPAttrState in the mask the state stays and the rules of from to from apply.
// Devices call it first in Modify. It knows RC; other types are ErrNotSupported.
func CheckTransition(t QPType, from QPState, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	if t != QPTRC {
		return from, fmt.Errorf("modify %v queue pair: %w", t, ErrNotSupported)
	}
	to := from
	if mask&QPAttrState != 0 {
		to = attr.State
	}
	if mask&QPAttrCurState != 0 && attr.CurState != from {
		return from, fmt.Errorf("current state is %v, not %v: %w", from, attr.CurState, ErrTransition)
	}
	r, ok := rcRules(step{from, to})
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
