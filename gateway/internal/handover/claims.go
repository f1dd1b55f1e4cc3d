package handover

import (
	"errors"
	"sync"
)

var (
	// ErrUnderWay is returned while another process is taking over.
	ErrUnderWay = errors.New("a takeover is under way")
	// ErrDraining is returned if the gateway is draining, or if one that is draining is still beside it.
	ErrDraining = errors.New("a gateway that drains is still there")

	errOrder   = errors.New("takeover: a step out of order")
	errToDrain = errors.New("the gateway is to drain")
)

// state is how far a takeover by another process has come.
type state uint8

// The states of a gateway.
//
//	        claim             yield             leave
//	alone ─────────► claimed ───────► yielded ─────────► left (drains)
//	  ▲                 │                │
//	  └─────────────────┴────────────────┘ lost: what was yielded is taken back
//
// alone: nothing is shared. claimed: the successor opens its datapath beside ours. yielded: new connections are native,
// and what only one gateway can have (ports, the place of the admin socket) is free. left: new connections are the
// successor's; ours are served to their end.
const (
	alone state = iota
	claimed
	yielded
	left
)

// step is what advances a takeover, as messages name it.
type step string

// The steps of a takeover. stepLook is not one: it only asks about the gateway.
const (
	stepLook  step = "look"
	stepClaim step = "claim"
	stepYield step = "yield"
	stepLeave step = "leave"
	stepLost  step = "lost" // the end of the conversation; not sent as a message
)

// next returns the state to which a step leads; false if the step is not possible now.
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

// claims serializes what changes the gateway: a takeover, or the gateway's own changes.
type claims struct {
	mu    sync.Mutex // guards everything below
	idle  sync.Cond  // on mu; signals changes of doing and at
	doing bool       // a step, change or end is running, without mu, since it may take seconds
	at    state      // not changed until a step is done
	wake  func()     // makes the takeover end; set until it is entirely over; nil: there is none
	left  chan struct{}
}

// newClaims returns the claims of a gateway that nothing has claimed.
func newClaims() *claims {
	c := &claims{left: make(chan struct{})}
	c.idle.L = &c.mu
	return c
}

// Busy reports whether a takeover is in progress or done.
func (c *claims) Busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at != alone
}

// claim takes the first step of a takeover, once no change is running. wake makes the takeover end; it may be called
// until free is.
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

// step runs do, then changes the state. Only the takeover that has claimed calls it. If do fails the state remains.
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

// doLocked runs do, without mu, while nothing else runs.
func (c *claims) doLocked(do func() error) error {
	c.doing = true
	c.mu.Unlock()
	err := do()
	c.mu.Lock()
	c.doing = false
	c.idle.Broadcast()
	return err
}

// free records that a takeover is entirely over.
func (c *claims) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = nil
}

// Change runs do, which changes the gateway, while no other process takes over. Changes run one at a time; Change waits
// for the one before.
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

// End runs do, which ends the gateway, once no step or change is running. It makes a takeover that is not complete fail
// first.
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
