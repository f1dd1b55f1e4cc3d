package socket

import "github.com/smcgw/smcgw/verbs"

// watch is the goroutine that receives asynchronous events of queue pairs.
func (s *Stack) watch() {
	for {
		e, err := s.dev.Async().Get(s.life)
		if err != nil {
			return
		}
		switch e.Type {
		case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
			if c := s.connOf(e.QP); c != nil {
				c.broken(e.Type)
			}
		default:
		}
	}
}

func (s *Stack) connOf(qp verbs.QP) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byQP[qp]
}
