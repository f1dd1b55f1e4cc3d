package negotiate

import (
	"errors"
	"fmt"
	"time"
)

// read acts on the messages that have arrived. There may be more than one: a client can lose patience right after its
// PROPOSAL, and records follow CONFIRM.
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

// readOne acts on the first message; again is true when another one may follow it.
func (s *Server) readOne(now time.Time) (todo []Action, again bool) {
	if s.state == serverWaiting && s.confirmed == ConfirmedUnknown {
		switch guard(s.in.buf, s.nonce) {
		case guardClear:
			return s.goRaw(now), false
		case guardUndecided:
			return nil, false
		case guardMatch:
			s.confirmed = ConfirmedYes
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
	case h.Type == TypeDecline && s.state != serverCarried:
		return s.onDecline(msg), false
	case h.Type == TypeConfirm && (s.state == serverAccepted || s.state == serverCarried):
		return s.onConfirm(msg), false
	case s.state == serverWaiting || s.state == serverServing:
		return s.decline(now, ReasonProtocolError), false
	}
	return s.abort(ReasonProtocolError, true, false), false
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
	s.state = serverServing
	s.deadline = now.Add(serveTime(budget, s.rtt))
	s.lastWord = now.Add(lastWordTime(budget, s.rtt))
	return []Action{Serve{Proposal: &s.proposal}}
}

// nothingOffered: a client without anything to offer says why right behind its PROPOSAL.
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

// Served says that the application is connected and everything reserved; a.Carriers names what is ready to be proved, in
// the order the client should try. The version is filled in. After Verdict was decided it does nothing: the owner frees
// what it has just reserved.
func (s *Server) Served(now time.Time, a Accept) []Action {
	if s.state != serverServing {
		return nil
	}
	a.Version = min(s.proposal.MaxVersion, Version)
	a.Carriers = offered(a.Carriers, s.proposal.Carriers)
	if len(a.Carriers) == 0 {
		return s.decline(now, ReasonNoCommonCarrier)
	}
	s.accept = a
	s.state, s.deadline = serverAccepted, s.lastWord
	return []Action{Send{Bytes: s.auth.seal(AppendAccept(nil, &s.accept))}}
}

// offered returns what of cs the client has offered: it would take anything else for a protocol error.
func offered(cs, offer []CarrierOffer) []CarrierOffer {
	var common []CarrierOffer
	for i := range cs {
		if cs[i].answers(FindCarrier(offer, cs[i].Kind)) && FindCarrier(common, cs[i].Kind) == nil {
			common = append(common, cs[i])
		}
	}
	return common
}

// Refused says that the connection cannot be served, and why.
func (s *Server) Refused(now time.Time, r Reason) []Action {
	if s.state != serverServing {
		return nil
	}
	return s.decline(now, r)
}

// PeerData says that stream data (not the carrier proof) arrived on the queue pair of this carrier: the client has
// confirmed it, the CONFIRM is still on its way. With a key the data wait for that: it is authenticated and they are not.
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
