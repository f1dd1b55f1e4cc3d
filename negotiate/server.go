package negotiate

import "time"

// ServerConfig is what a server handshake needs to know.
type ServerConfig struct {
	// HandshakeTimeout is the part of the deadlines that does not depend on the path; 0 means 200 ms.
	HandshakeTimeout time.Duration
	// Keys, when there are any, authenticate the messages of both sides: nothing is served to a client that has none of
	// them. They need Binding and Accept.Random.
	Keys Keys
	// Binding names the connection.
	Binding Binding
	// Seen is shared by all servers of a gateway; nil: recorded PROPOSALs are told by Binding alone.
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
// A server that says DECLINE has not dialled the application so that it could have accepted, and never will. Whatever is
// too late is found to be so before the dial. When a dial takes too long, or ASK comes meanwhile, the dial is given up where
// it is known not to have been accepted (Undial), and else has succeeded.
//
// A server that has accepted an offer must not reset before it has read something of the client: to the application's
// socket after a dead gateway that RST would be ECONNREFUSED. Until then it aborts silently.
//
// It is not safe for concurrent use. Every input returns the actions to execute, in order; after each input the owner
// arms its timer at Deadline and calls Tick when that has come (bytes that have arrived are delivered before Tick), and
// reads the wire leg for Receive only while Reading is true.
type Server struct {
	cfg   ServerConfig
	nonce uint16

	state     serverState
	confirmed Confirmed
	arrived   time.Time // what Start tells of
	deadline  time.Time
	began     time.Time // dialling: when
	undial    Reason    // dialling: why that is given up, if it can be
	hurried   bool      // Cancel came: the last word is not waited for longer than it takes
	lastWord  time.Time // when the client has spoken its last word at the latest
	rtt       time.Duration
	in        inbox
	heard     bool // bytes of the client were read: a RST does no harm any more
	cleared   bool // raw: the guard has decided that the client is native
	forwarded bool // raw: the Forward with Last was given out
	awaiting  bool // carried because of data: CONFIRM is still to come
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

// NewServer returns a server for a connection whose SYN carried an offer with this nonce.
func NewServer(cfg ServerConfig, nonce uint16) *Server {
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	return &Server{cfg: cfg, nonce: nonce, auth: newExchange(cfg.Keys, cfg.Binding, FromServer)}
}

// Deadline returns when Tick wants to be called, zero for never. While the raw dial runs there is none: the dial has the
// owner's own timeout.
func (s *Server) Deadline() time.Time { return s.deadline }

// Reading reports whether the wire leg is to be read for Receive; while false its bytes stay where they are.
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

// Verdict returns the result; false while there is none. A raw or carried connection can still become aborted while
// Reading is true.
func (s *Server) Verdict() (Verdict, bool) {
	return s.verdict, s.verdict.Outcome != OutcomeNone
}

// Stage returns how far the handshake has come.
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

// Start begins the handshake: the third ACK has arrived at now, synRTT after the SYN-ACK. Where it has waited for the caller
// since, that is time of the client's, too: a PROPOSAL that it brought counts from there.
func (s *Server) Start(now time.Time, synRTT time.Duration, c Confirmed) []Action {
	if s.state != serverIdle {
		return nil
	}
	s.rtt, s.arrived = synRTT, now
	s.state = serverWaiting
	s.deadline = now.Add(budget(s.cfg.HandshakeTimeout, synRTT))
	return s.confirm(now, c)
}

// confirm says what a later segment told about the client when Start did not know.
func (s *Server) confirm(now time.Time, c Confirmed) []Action {
	if s.confirmed != ConfirmedUnknown {
		return nil
	}
	s.confirmed = c
	if s.state != serverWaiting {
		return nil
	}
	switch c {
	case ConfirmedNo: // what has come with that is looked at first: a box may have taken the confirm off a PROPOSAL
		s.deadline = now
		return s.read(now)
	case ConfirmedYes:
		return s.read(now)
	case ConfirmedUnknown:
	}
	return nil
}

// Receive takes bytes of the wire leg.
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

// EOF says that the client ended its direction of the wire leg. After a Forward with Last the owner sees it by itself.
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

// WireLost says that the wire leg is gone: reset by the client or timed out.
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

// WireFailed says that the wire leg does not take what is to be sent: a condition of this host.
func (s *Server) WireFailed(now time.Time) []Action { return s.WireLost(now) }

// Released says that a bare SYN with the connection's ISN arrived: the client fell back to native TCP. The owner gives
// that SYN to the kernel after it has executed the actions.
func (s *Server) Released(time.Time) []Action {
	switch s.state {
	case serverIdle, serverWaiting, serverServing, serverDialling, serverAccepted:
		return s.ended(Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true)
	case serverDeclined:
		return s.ended(s.verdict, true)
	case serverRawDialling, serverRaw:
		// A client that is native and connected sends no SYN, so an old one says nothing. A client that has not been
		// heard has lost its first segments, and waits for the answer to its SYN.
		if s.Mute() {
			return s.ended(Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true)
		}
	case serverCarried, serverDone: // such a leg answers a challenge ACK (RFC 5961)
	}
	return nil
}

// Cancel ends the handshake for a local reason (drained, off, limits). Once the application was reached only the client
// decides, but it is not waited for longer than it needs. Carried and raw flows are ended like any other.
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

// hurry has a server that ends wait for the last word no longer than that takes.
func (s *Server) hurry(now time.Time) {
	if soon := now.Add(hurriedWordTime(min(s.proposal.Budget, maxBudget), s.rtt)); soon.Before(s.deadline) {
		s.deadline = soon
	}
}

// Tick acts on a deadline that has come.
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

// waited is for how long a PROPOSAL was waited for; 0: the client is known to send none.
func (s *Server) waited() time.Duration {
	if s.confirmed == ConfirmedNo {
		return 0
	}
	return budget(s.cfg.HandshakeTimeout, s.rtt)
}

// decline says no and waits for the client to end the wire leg.
func (s *Server) decline(now time.Time, r Reason) []Action {
	s.state = serverDeclined
	s.deadline = now.Add(lingerTime(s.rtt))
	s.verdict = Verdict{Outcome: OutcomeDeclined, Reason: r}
	return []Action{Send{Bytes: s.auth.decline(r)}, Drop{}}
}

// Mute reports whether a RST could still be taken for the answer to the application's SYN: nothing was heard of the
// client, and it is not known to be native (and thus connected).
func (s *Server) Mute() bool { return !s.heard && s.confirmed != ConfirmedNo }

// abort ends both legs; a decision that was made before stands.
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
