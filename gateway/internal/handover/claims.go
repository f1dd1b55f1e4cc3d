package handover

import (
	"errors"
	"sync"
)

var (
	// ErrUnderWay is returned while another process takes over.
	ErrUnderWay = errors.New("a takeover is under way")
	// ErrDraining is returned when the gateway drains, or one that drains is still
	// beside it.
	ErrDraining = errors.New("a gateway that drains is still there")

	errOrder   = errors.New("takeover: a step out of order")
	errToDrain = errors.New("the gateway is to drain")
)

// state is how far another process is with taking over.
type state uint8

// The states of a gateway.
//
//	        claim             yield             leave
//	alone ─────────► claimed ───────► yielded ─────────► left (drains)
//	  ▲                 │                │
//	  └─────────────────┴────────────────┘ lost: what was yielded is taken back
//
// alone: everything is ours. claimed: the successor opens its datapath beside ours. yielded:
// new connections are native, and what only one gateway can have (ports, the place of the admin
// socket) is free. left: new connections are the successor's; ours are served to their end.
const (
	alone state = iota
	claimed
	yielded
	left
)

// step is what moves a takeover on, as the messages name it.
type step string

// The steps of a takeover, and what is none: look only asks what the gateway is.
const (
	stepLook  step = "look"
	stepClaim step = "claim"
	stepYield step = "yield"
	stepLeave step = "leave"
	stepLost  step = "lost" // the end of the conversation, which is no message
)

// next is the state to which a step leads; false: it cannot come now.
func (s state) next(by step) (to state, ok bool) {
	type row struct {
		from state
		by   step
	}
	to, ok = map[row]state{
		{alone, stepClaim}:   claimed,
		{claimed, stepYield}: yielded,
		{yielded, stepLeave}: left,
		{claimed, stepLost}:  alone,
		{yielded, stepLost}:  alone,
	}[row{s, by}]
	return to, ok
}

// claims decide what changes a gateway, one thing at a time: a takeover, or the gateway itself.
type claims struct {
	mu    sync.Mutex // guards everything below
	idle  sync.Cond  // of mu: doing or at has changed
	doing bool       // a step, a change or an end is under way, without mu: it may take seconds
	at    state      // a step that is under way does not count yet
	wake  func()     // has the takeover end, until everything of it is over; nil: there is none
	left  chan struct{}
}

// newClaims returns those to a gateway that nothing has claimed.
func newClaims() *claims {
	c := &claims{left: make(chan struct{})}
	c.idle.L = &c.mu
	return c
}

// Busy reports whether a takeover is under way or done.
func (c *claims) Busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at != alone
}

// claim is the first step of a takeover, after what is being done. wake, which may be called until
// free is, has it end.
func (c *claims) claim(wake func(), do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.at != left && c.wake == nil && c.doing {
		c.idle.Wait()
	}
	switch {
	case c.at == left:
		return ErrDraining
	case c.wake != nil:
		return ErrUnderWay
	}
	err := c.stepLocked(stepClaim, do)
	if err == nil {
		c.wake = wake
	}
	return err
}

// step does what leads from one state to the next; only the takeover that has claimed calls it. A do
// that fails leaves the state as it was.
func (c *claims) step(by step, do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stepLocked(by, do)
}

func (c *claims) stepLocked(by step, do func() error) error {
	to, ok := c.at.next(by)
	if !ok {
		return errOrder
	}
	if err := c.doLocked(do); err != nil {
		return err
	}
	if c.at = to; to == left {
		close(c.left)
	}
	return nil
}

// doLocked does something while nothing else is done; mu is not held meanwhile.
func (c *claims) doLocked(do func() error) error {
	c.doing = true
	c.mu.Unlock()
	err := do()
	c.mu.Lock()
	c.doing = false
	c.idle.Broadcast()
	return err
}

// free says that everything of a takeover is over.
func (c *claims) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = nil
}

// Change does what changes the gateway while no other process takes over. There is one change at a
// time: the next begins when that one is done.
func (c *claims) Change(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.at == alone && c.doing {
		c.idle.Wait()
	}
	if c.at != alone {
		return ErrUnderWay
	}
	return c.doLocked(do)
}

// End does what ends the gateway. A takeover that has not come to its end is lost before: it
// ends another way than this one.
func (c *claims) End(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		_, underWay := c.at.next(stepLost)
		switch {
		case underWay:
			c.wake()
		case !c.doing:
			return c.doLocked(do)
		}
		c.idle.Wait()
	}
}
