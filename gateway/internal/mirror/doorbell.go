package mirror

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// ringAgain is the time after which a set that still sleeps is rung for again.
const ringAgain = 20 * time.Millisecond

// Desk is a process's desk, by which the gateway sees whether its epoll sets sleep. The ends of the process share it,
// across shards.
type Desk struct {
	page   []byte
	rung   [inprocess.Slots]atomic.Uint32
	rungAt [inprocess.Slots]atomic.Int64
	made   time.Time
	calls  *aside
}

// OpenDesk maps a desk. The file stays the caller's.
func OpenDesk(fd int) (*Desk, error) {
	page, err := unix.Mmap(fd, 0, inprocess.DeskSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map desk: %w", err)
	}
	return &Desk{page: page, made: time.Now(), calls: new(aside)}, nil
}

// Close unmaps the desk. All ends of the process must be closed, and their shards must have seen it.
func (d *Desk) Close() error { return unix.Munmap(d.page) }

// sleeps reports whether an end must ring for the set at a slot: the set sleeps, and this sleep has not been rung for,
// or not for ringAgain. It records the ring for all ends at the slot; but not if still returns false, as the end has
// then left the slot and its doorbell would not wake the others.
func (d *Desk) sleeps(slot uint32, now time.Time, still func() bool) bool {
	s, rung := sleepsOf(d.page, slot).Load(), d.rung[slot].Load()
	at := int64(now.Sub(d.made))
	if s == 0 || s == rung && at-d.rungAt[slot].Load() < int64(ringAgain) {
		return false
	}
	if !still() {
		return true
	}
	if !d.rung[slot].CompareAndSwap(rung, s) { // another end has rung
		return false
	}
	d.rungAt[slot].Store(at)
	return true
}

// ring rings the doorbell for bytes in the mirror, if the consumer sleeps.
func (e *End) ring() {
	if e.sock < 0 { // Rings makes up for it
		return
	}
	arm := e.own.arm.Load() // after the words: the consumer arms, then reads them
	slot := arm & inprocess.ArmSelf
	if arm != 0 && slot < inprocess.Slots && e.cfg.Desk != nil {
		if e.cfg.Desk.sleeps(slot, e.shard.Now(), func() bool { return e.own.arm.Load() == arm }) {
			e.doorbell()
		}
		return
	}
	e.announce()
}

// announce rings for changes of words other than head. A set does not look at those before it sleeps, so it rings for a
// slot even if the slot's set does not sleep.
func (e *End) announce() {
	if e.sock < 0 {
		return
	}
	arm := e.own.arm.Load() // after the words: the consumer arms, then reads them
	switch {
	case arm == 0:
		return
	case arm&inprocess.ArmSelf != inprocess.ArmSelf:
	case arm == e.rung:
		return
	default:
		e.rung = arm
	}
	e.doorbell()
}

// doorbell makes the socket readable, at the end of the turn: with SO_RCVLOWAT 1, the byte left in its receive queue
// suffices. A library that has left the ring waits for nothing, and SO_RCVLOWAT is the program's again.
func (e *End) doorbell() {
	if e.own.flags.Load()&inprocess.Gone == 0 {
		e.knock.rings = true
		e.knock.ask()
	}
}

// knock makes the calls on the socket of an end. Unless it is idle, it has the descriptor.
type knock struct {
	heldUp
	e       *End
	state   knockState
	rings   bool // due: SO_RCVLOWAT 1
	widens  bool // due: a larger send buffer
	lingers bool // the process has ended, or the end is closed: what is due is still done, then the socket lingers
	then    func()

	fd  int
	now struct{ rings, widens bool } // what the call under way is for
}

// knockState is the state of a knock.
//
//	idle ── ask ──► due ── end of the turn ──► underWay ── Back ──► idle
//	                 ▲                             │
//	                 └──── Back, asked meanwhile ──┘
type knockState uint8

const (
	idle knockState = iota
	due
	underWay
)

var _ loop.Outsider = (*knock)(nil)

// ask has what is due done.
func (k *knock) ask() {
	if k.state == idle && k.e.sock >= 0 {
		k.fd = k.e.sock
		k.again()
	}
}

func (k *knock) again() {
	k.state = due
	k.shard.Outside(k)
}

// end is called when nothing is under way: it does what was asked meanwhile, or gives the descriptor back. The end may
// have got another one, which is next.
func (k *knock) end() {
	if (k.rings || k.widens) && k.mine() {
		k.again()
		return
	}
	switch k.state = idle; {
	case k.e.sock == k.fd:
	case k.lingers:
		k.lingers = false
		k.e.lingers(k.fd)
	default:
		shared.CloseSocket(&k.fd)
	}
	if k.rings || k.widens {
		k.ask()
	}
	if k.state == idle && k.then != nil {
		k.shard.Post(k.then)
		k.then = nil
	}
}

// mine reports whether the end, or its last will, has the same descriptor as the knock.
func (k *knock) mine() bool { return k.e.sock == k.fd || k.lingers }

// Owner implements loop.Work.
func (k *knock) Owner() loop.Owner { return k.e.cfg.Owner }

// Ready implements loop.Outsider. After the program has held up a call, the calls are not the shard's for a while.
func (k *knock) Ready() bool {
	if !k.mine() {
		k.end()
		return false
	}
	k.now.rings, k.now.widens = k.rings, k.widens
	k.rings, k.widens = false, false
	if k.e.phase != closed && k.e.own.flags.Load()&inprocess.Gone != 0 { // meanwhile
		k.now.rings = false
	}
	if !k.now.rings && !k.now.widens {
		k.end()
		return false
	}
	if k.now.rings {
		k.e.doorbells.Add(1)
	}
	k.state = underWay
	return !k.calls.takes(k, k.shard)
}

func (k *knock) Outside() {
	if k.now.widens {
		widen(k.fd, int(k.e.size)+inprocess.Spill)
	}
	if k.now.rings {
		setLowAt(k.fd, 1)
	}
}

func (k *knock) Back() {
	k.returned()
	k.end()
}

// letGo closes the duplicate of the socket.
func (e *End) letGo() {
	if e.knock.state != idle && e.knock.fd == e.sock {
		e.sock = -1 // and the knock closes it
	}
	shared.CloseSocket(&e.sock)
}

// linger has the duplicate of the socket linger, if there is one: see [Hub.linger].
func (e *End) linger() {
	fd := e.sock
	e.sock = -1
	switch {
	case fd < 0:
	case e.knock.state != idle && e.knock.fd == fd:
		e.knock.lingers = true
	default:
		e.lingers(fd)
	}
}

func (e *End) lingers(fd int) {
	var sent func(bool)
	if e.ended == sends {
		sent = e.hasSent
	}
	e.cfg.Hub.linger(fd, e.knock.calls, sent)
}
