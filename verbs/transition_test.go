package verbs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var allTypes = []QPType{QPTRC, QPTUC, QPTUD, QPTGSI}

// legal are the steps of each transport; RESET and ERR are legal from everywhere.
var legal = func() map[QPType]map[step]bool {
	all := []step{
		{QPSReset, QPSInit},
		{QPSInit, QPSInit},
		{QPSInit, QPSRTR},
		{QPSRTR, QPSRTS},
		{QPSRTS, QPSRTS},
	}
	m := map[QPType]map[step]bool{}
	for _, typ := range allTypes {
		m[typ] = map[step]bool{}
		for _, s := range all {
			m[typ][s] = true
		}
		m[typ][step{QPSSQE, QPSRTS}] = typ != QPTRC
	}
	return m
}()

// All pairs of states of all transports.
func TestTransitions(t *testing.T) {
	for _, typ := range allTypes {
		for from := QPSReset; from <= QPSErr; from++ {
			for to := QPSReset; to <= QPSErr+1; to++ {
				mask := rulesOf(typ)[step{from, to}].required | QPAttrState
				got, err := CheckTransition(typ, from, &QPAttr{State: to}, mask)
				if legal[typ][step{from, to}] || to == QPSReset || to == QPSErr {
					require.NoError(t, err, "%v: %v to %v", typ, from, to)
					require.Equal(t, to, got)
				} else {
					require.ErrorIs(t, err, ErrTransition, "%v: %v to %v", typ, from, to)
					require.Equal(t, from, got)
				}
			}
		}
	}
	_, err := CheckTransition(QPType(9), QPSReset, &QPAttr{}, 0)
	require.ErrorIs(t, err, ErrNotSupported)
	_, err = CheckTransition(QPTRC, QPSErr, &QPAttr{}, 0)
	require.ErrorIs(t, err, ErrTransition, "nothing can be set in ERR")
}

// required is IBTA vol. 1, table 91, as ibv_modify_qp(3) prints it; what is not
// named here requires nothing.
var required = map[string]QPAttrMask{
	"RC RESET INIT": QPAttrPKeyIndex | QPAttrPort | QPAttrAccess,
	"RC INIT RTR":   QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer,
	"RC RTR RTS":    QPAttrSQPSN | QPAttrMaxRDAtomic | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrTimeout,
	"UC RESET INIT": QPAttrPKeyIndex | QPAttrPort | QPAttrAccess,
	"UC INIT RTR":   QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN,
	"UC RTR RTS":    QPAttrSQPSN,
	"UD RESET INIT": QPAttrPKeyIndex | QPAttrPort | QPAttrQKey, "UD RTR RTS": QPAttrSQPSN,
	"GSI RESET INIT": QPAttrPKeyIndex | QPAttrPort | QPAttrQKey, "GSI RTR RTS": QPAttrSQPSN,
}

// Every attribute of every step is required, allowed or refused, and nothing
// but what is required must be there.
func TestTransitionAttributes(t *testing.T) {
	for _, typ := range allTypes {
		for s, ok := range legal[typ] {
			if !ok {
				continue
			}
			want := required[fmt.Sprintf("%v %v %v", typ, s.from, s.to)]
			r := rulesOf(typ)[s]
			require.Equal(t, want, r.required, "%v: %v to %v", typ, s.from, s.to)
			require.Zero(t, r.required&r.optional)
			attr := &QPAttr{State: s.to, CurState: s.from}
			check := func(mask QPAttrMask) error {
				_, err := CheckTransition(typ, s.from, attr, mask|QPAttrState)
				return err
			}
			require.NoError(t, check(want))
			require.NoError(t, check(want|r.optional))
			for bit := QPAttrMask(2); bit != 0; bit <<= 1 {
				switch {
				case want&bit != 0:
					require.ErrorIs(t, check(want&^bit), ErrTransition, "%v: %v to %v without %#x", typ, s.from, s.to, bit)
				case r.optional&bit != 0:
					require.NoError(t, check(want|bit))
				default:
					require.ErrorIs(t, check(want|bit), ErrTransition, "%v: %v to %v with %#x", typ, s.from, s.to, bit)
				}
			}
		}
	}
}

// What no step of a transport may ever be given (ibv_modify_qp(3)).
func TestForeignAttributes(t *testing.T) {
	const acknowledged = QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxRDAtomic | QPAttrMaxDestRDAtomic |
		QPAttrMinRNRTimer
	const connected = QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN | QPAttrAccess
	for typ, mask := range map[QPType]QPAttrMask{
		QPTRC: QPAttrQKey, QPTUC: QPAttrQKey | acknowledged, QPTUD: acknowledged | connected, QPTGSI: acknowledged | connected,
	} {
		for s, r := range rulesOf(typ) {
			require.Zero(t, mask&(r.required|r.optional), "%v: %v to %v", typ, s.from, s.to)
		}
	}
	for _, typ := range allTypes {
		for from := QPSReset; from <= QPSErr; from++ {
			for _, to := range []QPState{QPSReset, QPSErr} {
				_, err := CheckTransition(typ, from, &QPAttr{State: to}, QPAttrState|QPAttrPort)
				require.ErrorIs(t, err, ErrTransition, "%v to %v takes no attribute", from, to)
			}
		}
	}
}

func TestMasks(t *testing.T) {
	for _, c := range []struct {
		typ      QPType
		from, to QPState
		mask     QPAttrMask
	}{
		{QPTRC, QPSReset, QPSInit, InitMask},
		{QPTRC, QPSInit, QPSRTR, RTRMask},
		{QPTRC, QPSRTR, QPSRTS, RTSMask},
		{QPTUC, QPSReset, QPSInit, InitMask},
		{QPTUC, QPSInit, QPSRTR, UCRTRMask},
		{QPTUC, QPSRTR, QPSRTS, SQPSNMask},
		{QPTUD, QPSReset, QPSInit, UDInitMask},
		{QPTUD, QPSInit, QPSRTR, QPAttrState},
		{QPTUD, QPSRTR, QPSRTS, SQPSNMask},
	} {
		require.Equal(t, c.mask, QPAttrState|rulesOf(c.typ)[step{c.from, c.to}].required, "%v: %v to %v", c.typ, c.from, c.to)
	}
}

func TestCheckAttr(t *testing.T) {
	good := QPAttr{
		Port: 1, PathMTU: MTU4096, MinRNRTimer: 31, RNRRetry: 7, RetryCnt: 7, Timeout: 31, DestQPNum: 0xffffff,
		RQPSN: 0xffffff, SQPSN: 0xffffff,
	}
	const all = ^QPAttrMask(0)
	require.NoError(t, CheckAttr(&good, all))
	for mask, change := range map[QPAttrMask]func(*QPAttr){
		QPAttrPort:        func(a *QPAttr) { a.Port = 2 },
		QPAttrPathMTU:     func(a *QPAttr) { a.PathMTU = 6 },
		QPAttrMinRNRTimer: func(a *QPAttr) { a.MinRNRTimer = 32 },
		QPAttrRNRRetry:    func(a *QPAttr) { a.RNRRetry = 8 },
		QPAttrRetryCnt:    func(a *QPAttr) { a.RetryCnt = 8 },
		QPAttrTimeout:     func(a *QPAttr) { a.Timeout = 32 },
		QPAttrDestQPN:     func(a *QPAttr) { a.DestQPNum = 1 << 24 },
		QPAttrRQPSN:       func(a *QPAttr) { a.RQPSN = 1 << 24 },
		QPAttrSQPSN:       func(a *QPAttr) { a.SQPSN = 1 << 24 },
	} {
		bad := good
		change(&bad)
		require.ErrorIs(t, CheckAttr(&bad, all), ErrInvalid, "%#x", mask)
		require.ErrorIs(t, CheckAttr(&bad, mask), ErrInvalid, "%#x", mask)
		require.NoError(t, CheckAttr(&bad, all&^mask), "%#x is not looked at", mask)
	}
	none := good
	none.PathMTU, none.Port = 0, 0
	require.ErrorIs(t, CheckAttr(&none, QPAttrPathMTU), ErrInvalid)
	require.ErrorIs(t, CheckAttr(&none, QPAttrPort), ErrInvalid)
}

// Apply takes what the mask names and leaves the rest, State and CurState always.
func TestApply(t *testing.T) {
	masks := map[QPAttrMask]func(*QPAttr) any{
		QPAttrAccess: func(a *QPAttr) any { return a.Access }, QPAttrPKeyIndex: func(a *QPAttr) any { return a.PKeyIndex },
		QPAttrPort: func(a *QPAttr) any { return a.Port }, QPAttrQKey: func(a *QPAttr) any { return a.QKey },
		QPAttrAV: func(a *QPAttr) any { return a.AH }, QPAttrPathMTU: func(a *QPAttr) any { return a.PathMTU },
		QPAttrTimeout: func(a *QPAttr) any { return a.Timeout }, QPAttrRetryCnt: func(a *QPAttr) any { return a.RetryCnt },
		QPAttrRNRRetry: func(a *QPAttr) any { return a.RNRRetry }, QPAttrRQPSN: func(a *QPAttr) any { return a.RQPSN },
		QPAttrMaxRDAtomic: func(a *QPAttr) any { return a.MaxRDAtomic }, QPAttrSQPSN: func(a *QPAttr) any { return a.SQPSN },
		QPAttrMinRNRTimer:     func(a *QPAttr) any { return a.MinRNRTimer },
		QPAttrMaxDestRDAtomic: func(a *QPAttr) any { return a.MaxDestRDAtomic },
		QPAttrDestQPN:         func(a *QPAttr) any { return a.DestQPNum },
	}
	old := QPAttr{State: QPSRTS, CurState: QPSRTS}
	set := QPAttr{
		State: QPSErr, CurState: QPSErr, PathMTU: 1, QKey: 2, RQPSN: 3, SQPSN: 4, DestQPNum: 5, Access: 6,
		AH: AHAttr{UDPPort: 7}, PKeyIndex: 8, Port: 9, MaxRDAtomic: 10, MaxDestRDAtomic: 11, MinRNRTimer: 12, Timeout: 13,
		RetryCnt: 14, RNRRetry: 15,
	}
	rapid.Check(t, func(t *rapid.T) {
		mask := QPAttrMask(rapid.Uint32().Draw(t, "mask"))
		got := old
		got.Apply(&set, mask)
		for bit, field := range masks {
			from := &old
			if mask&bit != 0 {
				from = &set
			}
			require.Equal(t, field(from), field(&got), "%#x", bit)
		}
		require.Equal(t, QPSRTS, got.State)
		require.Equal(t, QPSRTS, got.CurState)
	})
}

func TestCheckPartition(t *testing.T) {
	second := QPAttr{PKeyIndex: 1}
	require.ErrorIs(t, CheckPartition(&second, QPAttrPKeyIndex, 1), ErrInvalid)
	require.NoError(t, CheckPartition(&second, QPAttrPKeyIndex, 2))
	require.NoError(t, CheckPartition(&second, QPAttrPort, 1))
}
