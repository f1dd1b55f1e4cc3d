package negotiate

import "time"

// Raw relay: the client's gateway does not know that we accepted (it died, or a box removed the accept), so a native TCP
// stream comes in on a connection only we can answer. The bytes go through untouched, but never before the guard has
// seen that they are not the PROPOSAL of a gateway whose confirm option was lost.

// goRaw gives up on negotiation, since a PROPOSAL was waited for in vain, or (0) the client has shown that it is native. What
// has been received stays in the inbox for the guard.
func (s *Server) goRaw(now time.Time, waited time.Duration) []Action {
	s.state, s.deadline = serverRawDialling, time.Time{}
	cleared := s.cleared
	todo := s.guardRaw(now)
	if s.cleared && !cleared { // what the client has sent is no PROPOSAL
		waited = 0
	}
	if s.state == serverDone {
		return todo
	}
	return append([]Action{DialRaw{Waited: waited}}, todo...)
}

// RawDialled takes the result of DialRaw; r is the reason when it failed.
func (s *Server) RawDialled(now time.Time, ok bool, r Reason) []Action {
	if s.state != serverRawDialling {
		return nil
	}
	if !ok {
		return s.abort(r, false, s.Mute())
	}
	s.state = serverRaw
	s.verdict = Verdict{Outcome: OutcomeRaw, Reason: ReasonAcceptLost}
	todo := []Action{RelayRaw{}}
	if s.cleared {
		return append(todo, s.clear()...)
	}
	return todo
}

// guardRaw looks at the bytes held so far.
func (s *Server) guardRaw(now time.Time) []Action {
	if s.cleared || len(s.in.buf) == 0 {
		return nil
	}
	switch guard(s.in.buf, s.nonce) {
	case guardMatch:
		return s.abort(ReasonAcceptLost, false, false)
	case guardClear:
		return s.clear()
	case guardUndecided:
	}
	if s.deadline.IsZero() { // whole PROPOSALs come in one piece; do not hold an application's bytes for ever
		s.deadline = now.Add(budget(s.cfg.HandshakeTimeout, s.rtt))
	}
	return nil
}

// clear forwards what the guard holds as soon as there is an application to take it.
func (s *Server) clear() []Action {
	s.cleared, s.deadline = true, time.Time{}
	if s.state != serverRaw || s.forwarded {
		return nil
	}
	s.forwarded = true
	return []Action{Forward{Bytes: s.in.rest(), Last: true}}
}
