package verbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// modQP records what is done to it; it refuses to enter a state.
type modQP struct {
	QP
	typ    QPType
	attr   QPAttr
	refuse QPState
	path   []QPState
}

var errRefused = errors.New("refused")

func (q *modQP) Modify(attr *QPAttr, mask QPAttrMask) error {
	to, err := CheckTransition(q.typ, q.attr.State, attr, mask)
	if err == nil {
		err = CheckAttr(attr, mask)
	}
	if err == nil && to == q.refuse {
		err = errRefused
	}
	if err != nil {
		return err
	}
	q.attr.Apply(attr, mask)
	q.attr.State = to
	q.path = append(q.path, to)
	return nil
}

func connectors() map[QPType]func(*modQP) error {
	return map[QPType]func(*modQP) error{
		QPTRC: func(q *modQP) error { return errors.Join(Init(q, AccessLocalWrite), Connect(q, ConnectAttr(77))) },
		QPTUC: func(q *modQP) error { return errors.Join(Init(q, AccessLocalWrite), ConnectUC(q, ConnectAttr(77))) },
		QPTUD: func(q *modQP) error { return StartUD(q, 5, 9) },
	}
}

func TestConnectors(t *testing.T) {
	for typ, connect := range connectors() {
		q := &modQP{typ: typ, refuse: 99}
		require.NoError(t, connect(q), "%v", typ)
		require.Equal(t, []QPState{QPSInit, QPSRTR, QPSRTS}, q.path)
		if typ == QPTUD {
			require.Equal(t, QPAttr{State: QPSRTS, Port: 1, QKey: 5, SQPSN: 9}, q.attr)
			continue
		}
		require.EqualValues(t, 77, q.attr.DestQPNum)
		require.Equal(t, AccessLocalWrite, q.attr.Access)
		require.Equal(t, MTU4096, q.attr.PathMTU)
	}
}

func TestConnectorsFail(t *testing.T) {
	for typ, connect := range connectors() {
		for _, s := range []QPState{QPSInit, QPSRTR, QPSRTS} {
			q := &modQP{typ: typ, refuse: s}
			require.ErrorIs(t, connect(q), errRefused, "%v to %v", typ, s)
			require.Less(t, q.attr.State, s)
		}
	}
}
