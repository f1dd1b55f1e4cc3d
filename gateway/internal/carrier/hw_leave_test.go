package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// closingQP is a queue pair that tells when it is about to be closed. Until then it may
// send.
type closingQP struct {
	verbs.QP
	closing func() error
}

func (q *closingQP) Close() error {
	if err := q.closing(); err != nil {
		return err
	}
	return q.QP.Close()
}

// replace has another queue pair stand for the one of a link.
func (s *side) replace(l *Link, qp verbs.QP) {
	a := s.hw.open()[0]
	s.on(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.links, l.QP)
		l.QP = qp
		a.links[qp] = l
	})
}

// TestHWSendBufferOutlivesQueuePair: when a connection leaves an adapter that goes, the
// next one of the peer gets its send buffer behind the close of the queue pair, which may
// send from it until then.
func TestHWSendBufferOutlivesQueuePair(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[0]
	c := carry(t, sides)
	l := c.link[0]
	var sent *byte
	s.on(func() { sent = &l.EP.Tail(0)[0] })
	given, looked := false, make(chan struct{})
	s.replace(l, &closingQP{l.QP, func() error {
		defer close(looked)
		r, err := l.Arena.AllocLocal(farRing) // as the endpoint of the next connection does
		if err != nil {
			return err
		}
		given = &r.Bytes()[0] == sent
		return r.Free()
	}})
	_, err := s.hw.Withdraw("rxe0")
	require.NoError(t, err)
	<-looked
	require.False(t, given, "the queue pair sends what another connection writes")
	s.on(func() { require.Equal(t, "kept", string(l.EP.Tail(0))) })
	for _, sent := range s.returns {
		sent()
	}
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}
