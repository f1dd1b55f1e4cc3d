package admin

import (
	"crypto/subtle"
	"errors"
	"sync"
	"sync/atomic"
)

var (
	// errTakeoverUnderWay is returned while another process takes over.
	errTakeoverUnderWay = errors.New("a takeover is under way")
	// ErrDraining is returned when the gateway drains, or one that drains is still
	// beside it.
	ErrDraining = errors.New("a gateway that drains is still there")
	// errNotSuccessor is returned to a caller that does not hold the takeover in
	// question, or not any more.
	errNotSuccessor = errors.New("no such takeover")
)

// successionState is how far another process is with taking over.
type successionState uint32

// The states of a succession.
//
//	           claim              yield               leave
//	alone ────────────► claimed ────────────► yielded ────────────► left (drains)
//	  ▲                    │                     │
//	  └────────────────────┴─────────────────────┘
//	    lost: the successor is gone             what was yielded is taken back
//
// alone: everything is ours, once a successor that hangs has ended. claimed: the successor opens its datapath beside
// ours. yielded: new connections are native, and what only one gateway can have
// (ports, admin socket) is free. left: new connections are the successor's; ours
// are served to their end.
const (
	successionAlone successionState = iota
	successionClaimed
	successionYielded
	successionLeft
)

// succession is the old gateway's end of a takeover: it decides which step may
// come next. Methods that do something hold mu, so that a successor that dies is
// dealt with behind it.
type succession struct {
	at atomic.Uint32 // a successionState; written under mu, read without: what is done may take seconds

	mu    sync.Mutex // guards everything below
	token string
	left  chan struct{} // closed when state becomes left
	heir  chan struct{} // closed behind left, when the successor lets new connections in
}

func newSuccession() *succession {
	return &succession{left: make(chan struct{}), heir: make(chan struct{})}
}

// state is how far a takeover is: what is being done counts when it is done.
func (s *succession) state() successionState { return successionState(s.at.Load()) }

// become changes the state; mu is held.
func (s *succession) become(next successionState) { s.at.Store(uint32(next)) }

// busy reports whether a takeover is under way or done.
func (s *succession) busy() bool { return s.state() != successionAlone }

// underWay reports whether a successor is between its first step and its last.
func (s *succession) underWay() bool {
	now := s.state()
	return now == successionClaimed || now == successionYielded
}

// claim begins a takeover for the holder of token.
func (s *succession) claim(token string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state() {
	case successionAlone:
		s.token = token
		s.become(successionClaimed)
		return nil
	case successionLeft:
		return ErrDraining
	default:
		return errTakeoverUnderWay
	}
}

// step does what leads from one state to the next, for the holder of the token. A
// do that fails leaves everything as it was.
func (s *succession) step(token string, from, to successionState, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state() != from || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		return errNotSuccessor
	}
	if err := do(); err != nil {
		return err
	}
	s.become(to)
	if to == successionLeft {
		close(s.left)
	}
	return nil
}

// lost ends a takeover that has not come to its end; takeBack undoes what was
// yielded.
func (s *succession) lost(token string, takeBack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token != token || !s.underWay() {
		return
	}
	if s.state() == successionYielded {
		takeBack()
	}
	s.token = ""
	s.become(successionAlone)
}

// restore does what makes everything ours again, unless it is a successor's by now.
func (s *succession) restore(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.state(); now == successionYielded || now == successionLeft {
		return nil
	}
	return do()
}
