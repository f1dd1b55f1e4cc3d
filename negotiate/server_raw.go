package negotiate

import "time"

// Raw relay: the client's gateway does not know that this server accepted, because it died or a box removed the accept
// option. So a native TCP stream comes in on a connection that only this server can answer. The bytes pass through
// untouched, but not before the guard has seen that they are not the PROPOSAL of a gateway whose confirm option was
// removed.

// goRaw gives up the negotiation. waited is how long the server has waited for a PROPOSAL, or 0 if the client has shown
// that it is native. The bytes received so far stay in the inbox for the guard.
func (s *Server) goRaw(now time.Time, waited time.Duration) []Action {
	s.state, s.deadline = serverRawDialling, time.Time{}
	cleared := s.cleared
	todo := s.guardRaw(now)
	if s.cleared && !cleared { // the client has sent something else than a PROPOSAL
		waited = 0
	}
	if s.state == serverDone {
		return todo
	}
	return append([]Action{DialRaw{Waited: waited}}, todo...)
}

// RawDialled takes the result of DialRaw. r is the reason if it failed.
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

// guardRaw examines the bytes held so far.
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
	if s.deadline.IsZero() { // a PROPOSAL comes in one piece; do not hold an application's bytes forever
		s.deadline = now.Add(budget(s.cfg.HandshakeTimeout, s.rtt))
	}
	return nil
}

// clear forwards what the guard holds as soon as there is an application leg to take it.
func (s *Server) clear() []Action {
	s.cleared, s.deadline = true, time.Time{}
	if s.state != serverRaw || s.forwarded {
		return nil
	}
	s.forwarded = true
	return []Action{Forward{Bytes: s.in.rest(), Last: true}}
}
