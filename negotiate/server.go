package negotiate

import "time"

// ServerConfig configures a server handshake.
type ServerConfig struct {
	// HandshakeTimeout is the part of the deadlines that does not depend on the path; 0 means 200 ms.
	HandshakeTimeout time.Duration
	// Keys, if any, authenticate the messages of both sides; a client that has none of them is not served. They require
	// Binding and Accept.Random.
	Keys Keys
	// Binding identifies the connection.
	Binding Binding
	// Seen is shared by all servers of a gateway. If nil, only Binding protects against replayed PROPOSALs.
	Seen *Seen
}

// Server is the server's side of one handshake, from the third ACK to the client's last word.
//
//	      Start           PROPOSAL          Reserved           Dialled           CONFIRM, data on a queue pair
//	idle ───────► waiting ────────► serving ────────► dialling ───────► accepted ────────────────────────────► carried
//	               │   │              │ Refused,        │ Dialled:        │ DECLINE, wire lost, bare SYN,
//	native, unless │   │ bad one      │ too long,       │ not             │ garbage, too long
//	PROPOSAL has   │   │              ▼ ASK             │                 ▼
//	come           │   └──────────► declined ◄──────────┘               ended
//	               ▼               (DECLINE sent) ──► ended
//	          raw dialling ── RawDialled ──► raw ── the guard finds a PROPOSAL ──► aborted(accept_lost)
//	               └── bare SYN of a client ──┘
//	                   not heard yet ──► ended
//
// DECLINE says that the application has not accepted a dial of this server and never will. So the server checks its
// deadline before it dials. If the dial takes too long, or ASK comes during it, the server gives it up if the
// application is known not to have accepted it (Undial); otherwise the dial counts as successful.
//
// A server that has accepted an offer must not send a RST before it has read something from the client. If the client's
// gateway is dead, that RST would reach the application's socket as ECONNREFUSED. Until then the server aborts
// silently.
//
// A Server is not safe for concurrent use. Every input returns the actions to execute, in order. After each input the
// owner sets its timer to Deadline and calls Tick when it expires, after delivering the bytes that have arrived. It
// reads the wire leg for Receive only while Reading returns true.
type Server struct {
	cfg   ServerConfig
	nonce uint16

	state     serverState
	confirmed Confirmed
	arrived   time.Time // when the segment of Start arrived
	deadline  time.Time
	began     time.Time // dialling: when it began
	undial    Reason    // dialling: the reason to decline if the dial can be given up
	hurried   bool      // Cancel came: do not wait for the last word longer than necessary
	lastWord  time.Time // the latest time for the client's last word
	rtt       time.Duration
	in        inbox
	heard     bool // bytes of the client were read, so a RST does no harm
	cleared   bool // raw: the guard has decided that the client is native
	forwarded bool // raw: the Forward with Last was returned
	awaiting  bool // carried because data came: CONFIRM is still outstanding
	auth      exchange

	proposal Proposal
	accept   Accept
	verdict  Verdict
}

type serverState uint8

const (
	serverIdle serverState = iota
	serverWaiting
	serverServing
	serverDialling
	serverAccepted
	serverDeclined
	serverRawDialling
	serverRaw
	serverCarried
	serverDone
)

// NewServer returns a server for a connection whose SYN carried an offer with the given nonce.
func NewServer(cfg ServerConfig, nonce uint16) *Server {
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	return &Server{cfg: cfg, nonce: nonce, auth: newExchange(cfg.Keys, cfg.Binding, FromServer)}
}

// Deadline returns when Tick must be called, or zero if never. It is zero during a raw dial, for which the owner has a
// timeout of its own.
func (s *Server) Deadline() time.Time { return s.deadline }

// Reading reports whether the owner should read the wire leg for Receive. If not, the bytes stay where they are.
func (s *Server) Reading() bool {
	switch s.state {
	case serverWaiting, serverServing, serverDialling, serverAccepted, serverDeclined:
		return true
	case serverRawDialling, serverRaw:
		return !s.cleared
	case serverCarried:
		return s.awaiting
	case serverIdle, serverDone:
	}
	return false
}

// Verdict returns the result, or false if there is none yet. A raw or carried connection can still be aborted while
// Reading returns true.
func (s *Server) Verdict() (Verdict, bool) {
	return s.verdict, s.verdict.Outcome != OutcomeNone
}

// Stage returns how far the handshake has got.
func (s *Server) Stage() Stage {
	switch s.state {
	case serverIdle:
		return StageAccepted
	case serverWaiting, serverServing, serverDialling, serverRawDialling:
		return StageNegotiating
	case serverAccepted:
		return StageCompleting
	case serverDeclined, serverRaw, serverCarried, serverDone:
	}
	return StageOver
}

// Start begins the handshake. now is when the third ACK arrived at the host, synRTT after the SYN-ACK; if the caller
// handles it later, that time still counts against the client's budget for a PROPOSAL that came with it.
func (s *Server) Start(now time.Time, synRTT time.Duration, c Confirmed) []Action {
	if s.state != serverIdle {
		return nil
	}
	s.rtt, s.arrived = synRTT, now
	s.state = serverWaiting
	s.deadline = now.Add(budget(s.cfg.HandshakeTimeout, synRTT))
	return s.confirm(now, c)
}

// confirm records what a segment told about the client, unless that is known already.
func (s *Server) confirm(now time.Time, c Confirmed) []Action {
	if s.confirmed != ConfirmedUnknown {
		return nil
	}
	s.confirmed = c
	if s.state != serverWaiting {
		return nil
	}
	switch c {
	case ConfirmedNo: // look at the bytes first: a box may have removed the confirm option from a PROPOSAL
		s.deadline = now
		return s.read(now)
	case ConfirmedYes:
		return s.read(now)
	case ConfirmedUnknown:
	}
	return nil
}

// Receive processes bytes that arrived on the wire leg.
func (s *Server) Receive(now time.Time, b []byte) []Action {
	if len(b) == 0 {
		return nil
	}
	s.heard = true
	switch {
	case s.state == serverDeclined || s.state == serverDone || s.state == serverIdle:
		return nil
	case s.state == serverCarried && !s.awaiting:
		return []Action{Records{Rest: b}}
	case s.state == serverRaw && s.cleared:
		return []Action{Forward{Bytes: b, Last: true}}
	}
	s.in.add(b)
	if s.state == serverRawDialling || s.state == serverRaw {
		return s.guardRaw(now)
	}
	return s.read(now)
}

// EOF says that the client has closed its direction of the wire leg. After a Forward with Last the owner sees this
// itself.
func (s *Server) EOF(now time.Time) []Action {
	switch s.state {
	case serverWaiting:
		if s.confirmed != ConfirmedYes {
			s.cleared = true
			return s.goRaw(now, 0)
		}
		return s.abort(ReasonClientGone, true, s.Mute())
	case serverRawDialling, serverRaw:
		return s.clear()
	case serverCarried:
		if !s.awaiting {
			return nil
		}
		return s.abort(ReasonWireReset, true, false)
	case serverServing, serverDialling, serverAccepted, serverDeclined:
		return s.abort(ReasonClientGone, true, s.Mute())
	case serverIdle, serverDone:
	}
	return nil
}

// WireLost says that the wire leg is gone: reset by the client, or timed out.
func (s *Server) WireLost(time.Time) []Action {
	switch s.state {
	case serverRawDialling, serverRaw, serverCarried:
		return s.abort(ReasonWireReset, true, true)
	case serverIdle, serverWaiting, serverServing, serverDialling, serverAccepted, serverDeclined:
		return s.abort(ReasonClientGone, true, true)
	case serverDone:
	}
	return nil
}

// WireFailed says that the wire leg cannot send, a local condition of this host.
func (s *Server) WireFailed(now time.Time) []Action { return s.WireLost(now) }

// Released says that a SYN without option and with the ISN of this connection has arrived: the client has fallen back
// to native TCP. The owner hands that SYN to the kernel after it has executed the actions.
func (s *Server) Released(time.Time) []Action {
	switch s.state {
	case serverIdle, serverWaiting, serverServing, serverDialling, serverAccepted:
		return s.ended(Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true)
	case serverDeclined:
		return s.ended(s.verdict, true)
	case serverRawDialling, serverRaw:
		// A native client that is connected sends no SYN, so this is an old one and means nothing. A client that has
		// not been heard has lost its first segments and is waiting for the answer to its SYN.
		if s.Mute() {
			return s.ended(Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true)
		}
	case serverCarried, serverDone: // such a leg answers with a challenge ACK (RFC 5961)
	}
	return nil
}

// Cancel ends the handshake for a local reason (drained, off, limits). Once the application has been reached, only the
// client can decide, but the server waits for it no longer than necessary. Carried and raw flows are ended like any
// other.
func (s *Server) Cancel(now time.Time, r Reason) []Action {
	switch s.state {
	case serverWaiting:
		if s.confirmed == ConfirmedYes {
			return s.decline(now, r)
		}
		return s.abort(r, false, s.Mute())
	case serverServing:
		return s.decline(now, r)
	case serverIdle:
		return s.abort(r, false, true)
	case serverRawDialling:
		return s.abort(r, false, s.Mute())
	case serverDialling:
		s.hurried = true
		return s.giveUp(r)
	case serverAccepted:
		s.hurry(now)
	case serverDeclined, serverRaw, serverCarried, serverDone:
	}
	return nil
}

// hurry limits how long a server that is ending waits for the client's last word.
func (s *Server) hurry(now time.Time) {
	if soon := now.Add(hurriedWordTime(min(s.proposal.Budget, maxBudget), s.rtt)); soon.Before(s.deadline) {
		s.deadline = soon
	}
}

// Tick acts on an expired deadline.
func (s *Server) Tick(now time.Time) []Action {
	if s.deadline.IsZero() || now.Before(s.deadline) {
		return nil
	}
	switch s.state {
	case serverWaiting:
		if s.confirmed != ConfirmedYes {
			s.cleared = len(s.in.buf) > 0 // no whole PROPOSAL
			return s.goRaw(now, s.waited())
		}
		return s.abort(ReasonClientGone, true, true)
	case serverServing:
		return s.decline(now, ReasonHandshakeTimeout)
	case serverDialling:
		return s.giveUp(s.slow(now))
	case serverAccepted:
		return s.abort(ReasonClientGone, true, false)
	case serverDeclined:
		return s.ended(s.verdict, s.Mute())
	case serverRawDialling, serverRaw:
		return s.clear()
	case serverIdle, serverCarried, serverDone:
	}
	return nil
}

// waited returns how long the server has waited for a PROPOSAL, or 0 if the client is known to send none.
func (s *Server) waited() time.Duration {
	if s.confirmed == ConfirmedNo {
		return 0
	}
	return budget(s.cfg.HandshakeTimeout, s.rtt)
}

// decline sends DECLINE and then waits for the client to end the wire leg.
func (s *Server) decline(now time.Time, r Reason) []Action {
	s.state = serverDeclined
	s.deadline = now.Add(lingerTime(s.rtt))
	s.verdict = Verdict{Outcome: OutcomeDeclined, Reason: r}
	return []Action{Send{Bytes: s.auth.decline(r)}, Drop{}}
}

// Mute reports whether a RST could still be taken for the answer to the application's SYN: nothing has been read from
// the client, and it is not known to be native (and thus connected).
func (s *Server) Mute() bool { return !s.heard && s.confirmed != ConfirmedNo }

// abort ends both legs. An earlier decision to decline stands.
func (s *Server) abort(r Reason, remote, silent bool) []Action {
	v := Verdict{Outcome: OutcomeAborted, Reason: r, Remote: remote, Shown: r == ReasonAcceptLost}
	if s.state == serverDeclined {
		v = s.verdict
	}
	return s.ended(v, silent)
}

func (s *Server) ended(v Verdict, silent bool) []Action {
	s.state, s.verdict, s.deadline = serverDone, v, time.Time{}
	s.in.rest()
	return []Action{Abort{Verdict: v, Silent: silent}}
}

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
