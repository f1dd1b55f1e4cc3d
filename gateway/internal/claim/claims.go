package claim

import (
	"context"
	"crypto/subtle"
	"errors"
	"sync"
	"sync/atomic"
)

var (
	// ErrUnderWay is returned while another process takes over.
	ErrUnderWay = errors.New("a takeover is under way")
	// ErrDraining is returned when the gateway drains, or one that drains is still
	// beside it.
	ErrDraining = errors.New("a gateway that drains is still there")
	// ErrNotSuccessor is returned to a caller that does not hold the takeover in
	// question, or not any more.
	ErrNotSuccessor = errors.New("no such takeover: everything is this gateway's again")
)

// State is how far another process is with taking over.
type State uint32

// The states of a gateway.
//
//	           claim              yield               leave
//	alone ────────────► claimed ────────────► yielded ────────────► left (drains)
//	 ▲ ▲                   │                     │
//	 │ └───────────────────┴─────────────────────┘
//	 │   lost: the successor is gone             what was yielded is taken back
//	 │   end: the gateway is to drain
//	 │        change
//	 └────────────────────► changing: the daemon puts another gateway in its place
//
// alone: everything is ours, once a successor that hangs has ended. claimed: the successor opens its datapath beside
// ours. yielded: new connections are native, and what only one gateway can have
// (ports, admin socket) is free. left: new connections are the successor's; ours
// are served to their end.
const (
	alone State = iota
	changing
	Claimed
	Yielded
	Left
)

// Claims are those to a gateway: they decide which step may come next. Methods that do
// something hold mu, so that a successor that dies is dealt with after it.
type Claims struct {
	at     atomic.Uint32          // a State; written under mu, read without: what is done may take seconds
	holder atomic.Pointer[holder] // of a takeover; as at

	mu      sync.Mutex    // guards everything below
	changed chan struct{} // closed at the end of a change
	left    chan struct{} // closed when state becomes left
	heir    chan struct{} // closed after left, when the successor lets new connections in
}

// holder is the process that takes over.
type holder struct {
	token   string
	revoked chan struct{} // closed when the takeover is not its any more
}

// New returns those to a gateway that nothing has claimed.
func New() *Claims {
	return &Claims{left: make(chan struct{}), heir: make(chan struct{})}
}

// state is how far a takeover is: what is being done counts when it is done.
func (s *Claims) state() State { return State(s.at.Load()) }

// become changes the state; mu is held.
func (s *Claims) become(next State) { s.at.Store(uint32(next)) }

// Busy reports whether a takeover is under way or done.
func (s *Claims) Busy() bool { return s.state() == Left || s.UnderWay() }

// UnderWay reports whether a successor is between its first step and its last.
func (s *Claims) UnderWay() bool {
	now := s.state()
	return now == Claimed || now == Yielded
}

// Left returns a channel that is closed with the last step of a takeover.
func (s *Claims) Left() <-chan struct{} { return s.left }

// Heir returns a channel that Followed closes.
func (s *Claims) Heir() <-chan struct{} { return s.heir }

// Followed says that the successor lets new connections in. It is called once, after Left.
func (s *Claims) Followed() { close(s.heir) }

// Claim begins a takeover for the holder of token, until revoked is closed: after a change
// that is under way. describe tells the holder what the gateway is, which stays so.
func (s *Claims) Claim(ctx context.Context, token string, describe func() error) (revoked <-chan struct{}, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	switch s.state() {
	case alone:
		if err := describe(); err != nil {
			return nil, err
		}
		h := &holder{token, make(chan struct{})}
		s.holder.Store(h)
		s.become(Claimed)
		return h.revoked, nil
	case Left:
		return nil, ErrDraining
	default:
		return nil, ErrUnderWay
	}
}

// lock locks mu when no change is under way.
func (s *Claims) lock(ctx context.Context) error {
	for {
		s.mu.Lock()
		if s.state() != changing {
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Change keeps takeovers away until done is called, unless there is one. There is one change
// at a time: the next begins when that one is done.
func (s *Claims) Change() (done func(), err error) {
	if s.Busy() { // and mu may be held for long
		return nil, ErrUnderWay
	}
	if err := s.lock(context.Background()); err != nil { // every change ends
		return nil, err
	}
	defer s.mu.Unlock()
	if s.state() != alone {
		return nil, ErrUnderWay
	}
	changed := make(chan struct{})
	s.changed = changed
	s.become(changing)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.become(alone)
		close(changed)
	}), nil
}

// holds reports whether a token is that of the takeover.
func (s *Claims) holds(token string) bool {
	h := s.holder.Load()
	return h != nil && subtle.ConstantTimeCompare([]byte(token), []byte(h.token)) == 1
}

// Step does what leads from one state to the next, for the holder of the token. A
// do that fails leaves everything as it was.
func (s *Claims) Step(token string, from, to State, do func() error) error {
	if !s.holds(token) { // and End may hold mu for long
		return ErrNotSuccessor
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state() != from || !s.holds(token) {
		return ErrNotSuccessor
	}
	if err := do(); err != nil {
		return err
	}
	s.become(to)
	if to == Left {
		close(s.left)
	}
	return nil
}

// Lost ends a takeover that has not come to its end; takeBack undoes what was
// yielded.
func (s *Claims) Lost(token string, takeBack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds(token) {
		s.revoke(takeBack)
	}
}

// End does what ends the gateway. A takeover that has not come to its end is lost before: it
// ends another way than this one.
func (s *Claims) End(takeBack func(), do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoke(takeBack)
	return do()
}

// revoke ends a takeover that is under way; mu is held. The holder hears of it first: what is
// taken back is still its own.
func (s *Claims) revoke(takeBack func()) {
	if !s.UnderWay() {
		return
	}
	close(s.holder.Swap(nil).revoked)
	if s.state() == Yielded {
		takeBack()
	}
	s.become(alone)
}

// Restore does what makes everything ours again, unless it is a successor's by now.
func (s *Claims) Restore(do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.state(); now == Yielded || now == Left {
		return nil
	}
	return do()
}
