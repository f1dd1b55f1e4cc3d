package negotiate

import (
	"errors"
	"fmt"
	"time"
)

// read processes the messages that have arrived. There may be more than one: a client may send ASK or DECLINE right
// after its PROPOSAL, and records follow CONFIRM.
func (s *Server) read(now time.Time) []Action {
	var todo []Action
	for len(s.in.buf) > 0 {
		more, again := s.readOne(now)
		todo = append(todo, more...)
		if !again {
			break
		}
	}
	return todo
}

// readOne processes the first message. again reports whether another may follow it.
func (s *Server) readOne(now time.Time) (todo []Action, again bool) {
	if s.state == serverWaiting && s.confirmed != ConfirmedYes {
		if todo, decided := s.guarded(now); decided {
			return todo, false
		}
	}
	h, msg, err := s.in.next()
	switch {
	case errors.Is(err, ErrShort):
		return nil, false
	case err != nil:
		return s.abort(ReasonOf(err), true, false), false
	}
	s.in.take(len(msg))
	switch {
	case h.Type == TypeProposal && s.state == serverWaiting:
		return s.onProposal(now, msg), s.state == serverServing
	case h.Type == TypeAsk && s.state != serverWaiting:
		todo, err := s.onAsk(now, msg)
		if err != nil {
			return s.abort(ReasonOf(err), true, false), false
		}
		return todo, s.state != serverDeclined
	case h.Type == TypeDecline && s.state != serverCarried:
		return s.onDecline(msg), false
	case h.Type == TypeConfirm && (s.state == serverAccepted || s.state == serverCarried):
		return s.onConfirm(msg), false
	case s.state == serverWaiting || s.state == serverServing:
		return s.decline(now, ReasonProtocolError), false
	case s.state == serverDialling:
		return s.giveUp(ReasonProtocolError), false
	}
	return s.abort(ReasonProtocolError, true, false), false
}

// guarded looks at the first bytes of a client that has not confirmed. decided is false if they are a PROPOSAL, so that
// the client is a gateway.
func (s *Server) guarded(now time.Time) (todo []Action, decided bool) {
	switch guard(s.in.buf, s.nonce) {
	case guardClear:
		return s.goRaw(now, 0), true
	case guardUndecided:
		if s.confirmed == ConfirmedNo { // a PROPOSAL comes in one piece; do not hold an application's bytes forever
			s.deadline = now.Add(budget(s.cfg.HandshakeTimeout, s.rtt))
		}
		return nil, true
	case guardMatch:
		if s.confirmed == ConfirmedNo {
			return s.abort(ReasonAcceptLost, false, false), true
		}
		s.confirmed = ConfirmedYes
	}
	return nil, false
}

func (s *Server) onProposal(now time.Time, msg []byte) []Action {
	if err := s.readProposal(msg); err != nil {
		return s.decline(now, ReasonOf(err))
	}
	if s.proposal.MinVersion > Version || s.proposal.MaxVersion < MinVersion {
		return s.decline(now, ReasonVersion)
	}
	if len(s.proposal.Carriers) == 0 {
		return s.nothingOffered(now)
	}
	budget := min(s.proposal.Budget, maxBudget)
	s.deadline = s.arrived.Add(serveTime(budget, s.rtt))
	if !now.Before(s.deadline) { // it has waited too long on this host
		return s.decline(now, ReasonHandshakeTimeout)
	}
	s.state = serverServing
	s.lastWord = now.Add(lastWordTime(budget, s.rtt))
	return []Action{Serve{Proposal: &s.proposal}}
}

// nothingOffered answers a PROPOSAL without carriers. Such a client sends its reason in a DECLINE right after it.
func (s *Server) nothingOffered(now time.Time) []Action {
	if h, msg, err := s.in.next(); err == nil && h.Type == TypeDecline {
		s.in.take(len(msg))
		return s.onDecline(msg)
	}
	return s.decline(now, ReasonNoCommonCarrier)
}

func (s *Server) readProposal(msg []byte) error {
	p, _, err := parseProposal(msg)
	if err != nil {
		return err
	}
	if p.Nonce != s.nonce {
		return fmt.Errorf("nonce %#04x instead of %#04x: %w", p.Nonce, s.nonce, ErrMalformed)
	}
	if err := s.auth.verifyProposal(msg, s.cfg.Seen); err != nil {
		return err
	}
	s.proposal = p
	return nil
}

// Reserved says that everything except the application is ready. a.Carriers lists what can be proved, in the order the
// client should try; Reserved fills in a.Version. After the verdict it does nothing, and the owner frees what it has
// just reserved.
func (s *Server) Reserved(now time.Time, a Accept) []Action {
	if s.state != serverServing {
		return nil
	}
	a.Version = min(s.proposal.MaxVersion, Version)
	a.Carriers = offered(a.Carriers, s.proposal.Carriers)
	if len(a.Carriers) == 0 {
		return s.decline(now, ReasonNoCommonCarrier)
	}
	if !now.Before(s.deadline) { // the answer would be late
		return s.decline(now, ReasonHandshakeTimeout)
	}
	s.accept, s.state, s.began = a, serverDialling, now
	return []Action{Dial{}}
}

// Dialled takes the result of Dial. r is the reason if the dial failed or was given up.
func (s *Server) Dialled(now time.Time, ok bool, r Reason) []Action {
	switch {
	case s.state != serverDialling:
		return nil
	case !ok && s.undial != ReasonNone:
		return s.decline(now, s.undial)
	case !ok:
		return s.decline(now, r)
	}
	s.state, s.deadline = serverAccepted, s.lastWord
	if s.hurried {
		s.hurry(now)
	}
	return []Action{Send{Bytes: s.auth.seal(encodeAccept(&s.accept))}}
}

// slow returns what used up the time: the application, or what came before the dial.
func (s *Server) slow(now time.Time) Reason {
	if now.Sub(s.began) < s.began.Sub(s.arrived) {
		return ReasonHandshakeTimeout
	}
	return ReasonAppUnreachable
}

// giveUp asks the owner to give up the dial if that is possible. The result comes either way.
func (s *Server) giveUp(r Reason) []Action {
	if s.undial != ReasonNone {
		return nil
	}
	s.undial, s.deadline = r, time.Time{}
	return []Action{Undial{}}
}

// onAsk answers a client that got no answer within its budget. If the answer was already sent, it is in flight and ASK
// is ignored.
func (s *Server) onAsk(now time.Time, msg []byte) ([]Action, error) {
	if _, _, err := parseAsk(msg); err != nil {
		return nil, err
	}
	if err := s.auth.verifyAsk(msg); err != nil {
		return nil, err
	}
	switch s.state { //nolint:exhaustive // in the others it was answered
	case serverServing:
		return s.decline(now, s.asked(now)), nil
	case serverDialling:
		return s.giveUp(s.asked(now)), nil
	}
	return nil, nil
}

// asked returns the reason for a client that had to ask: either the answer is late here, or the PROPOSAL arrived late,
// which is not the server's fault.
func (s *Server) asked(now time.Time) Reason {
	if now.Before(s.arrived.Add(serveTime(min(s.proposal.Budget, maxBudget), s.rtt))) {
		return ReasonProposalLate
	}
	return ReasonHandshakeTimeout
}

// offered returns those of cs that the client has offered. It would treat anything else as a protocol error.
func offered(cs, offer []CarrierOffer) []CarrierOffer {
	var common []CarrierOffer
	for i := range cs {
		if cs[i].Answers(FindCarrier(offer, cs[i].Kind)) && FindCarrier(common, cs[i].Kind) == nil {
			common = append(common, cs[i])
		}
	}
	return common
}

// Refused says that the connection cannot be served, and why. No dial has begun.
func (s *Server) Refused(now time.Time, r Reason) []Action {
	if s.state != serverServing {
		return nil
	}
	return s.decline(now, r)
}

// PeerData says that stream data (not the carrier proof) arrived on the queue pair of carrier k. The client has thus
// confirmed k, and its CONFIRM is in flight. With keys the data must wait for the CONFIRM, which is authenticated while
// they are not.
func (s *Server) PeerData(_ time.Time, k CarrierKind) []Action {
	if s.auth.on() || s.state != serverAccepted || FindCarrier(s.accept.Carriers, k) == nil {
		return nil
	}
	s.carry(k)
	s.awaiting = true
	return []Action{Carry{Carrier: k}}
}

func (s *Server) onDecline(msg []byte) []Action {
	r, err := s.auth.readDecline(msg)
	if err != nil {
		return s.abort(ReasonOf(err), true, false)
	}
	return s.ended(Verdict{Outcome: OutcomeDeclined, Reason: r, Remote: true}, true)
}

func (s *Server) onConfirm(msg []byte) []Action {
	c, err := s.readConfirm(msg)
	if err != nil {
		return s.abort(ReasonOf(err), true, false)
	}
	records := Records{Rest: s.in.rest()}
	if s.state == serverCarried {
		s.awaiting = false
		return []Action{records}
	}
	s.carry(c.Carrier)
	return []Action{Carry{Carrier: c.Carrier}, records}
}

func (s *Server) readConfirm(msg []byte) (Confirm, error) {
	c, _, err := parseConfirm(msg)
	if err != nil {
		return c, err
	}
	if err := s.auth.verify(msg); err != nil {
		return c, err
	}
	switch {
	case c.Version != s.accept.Version:
		return c, fmt.Errorf("clc confirm of version %d: %w", c.Version, ErrMalformed)
	case s.state == serverCarried && c.Carrier != s.verdict.Carrier:
		return c, fmt.Errorf("clc confirm of %s after data on %s: %w", c.Carrier, s.verdict.Carrier, ErrMalformed)
	case c.Carrier != CarrierRelay && FindCarrier(s.accept.Carriers, c.Carrier) == nil:
		return c, fmt.Errorf("clc confirm of %s: %w", c.Carrier, ErrMalformed)
	}
	return c, nil
}

func (s *Server) carry(k CarrierKind) {
	s.state, s.deadline = serverCarried, time.Time{}
	s.verdict = Verdict{Outcome: OutcomeCarried, Carrier: k}
	if k == CarrierRelay {
		s.verdict.Reason, s.verdict.Remote = ReasonCarrierUnreachable, true
	}
}
