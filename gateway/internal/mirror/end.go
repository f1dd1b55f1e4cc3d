package mirror

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// ErrNonsense means that a library or a peer gateway has stated something impossible.
var ErrNonsense = errors.New("impossible word")

// Owner is the user of an end. Its methods are called on the end's shard and must not block. None is called after
// [End.Close] has taken effect.
type Owner interface {
	loop.Owner
	// Said reports that the library has changed its flags, or opened its direction.
	Said(s Said)
	// Drained reports, after [End.ProcessEnded] and the last Said, that the peer gateway has everything that the
	// process wrote to its ring, and knows how much it read there; bytes is what it wrote there in total, and read 1 more
	// than what it read there and from frames, or 0. reset means that the process has reset the connection, or its end
	// has: the peer lacks what it wrote to the kernel.
	Drained(bytes, read uint64, reset bool)
	// Lost reports that the carrier has failed, and that the library has been told.
	Lost(why negotiate.Reason, err error)
}

// Said is what a library states about itself, apart from its bytes.
type Said struct {
	Flags   uint32 // inprocess.Attached, Recall, Gone, Asks
	Opening Opening
	// Questions counts how often it has asked for the peer's Opening. What it asked before its
	// Recall it asks again after it: the peer may still have opened in between.
	Questions uint32
}

// Opening is where a direction changes from the kernel to the ring.
type Opening struct {
	Opened bool
	At     uint64 // position of OPEN in the kernel's stream, if Opened
	Ksent  uint64 // bytes given to the kernel before OPEN
}

// Config configures an end.
type Config struct {
	// ID is the connection's, Side the side of it that the end is.
	ID   uint64
	Side uint32
	// Order is the binary logarithm of the size of both rings.
	Order uint32
	// Nonces announce OPEN: first the peer's nonce, then this end's.
	Nonces [2][inprocess.NonceSize]byte
	// Local and Remote are the addresses of the connection.
	Local, Remote netip.Addr
	// Desk is the desk of the end's process; nil: the end is at no slot.
	Desk *Desk
	// Hub is the hub of the shard that the end belongs to.
	Hub   *Hub
	Owner Owner
}

// phase is the state of an end.
//
//	made ── Start ──► carrying ── the carrier fails, a word is nonsense ──► lost
//	  └──────────────────┴────────── Close ────────────────────────────────┴──► closed
type phase uint8

const (
	made phase = iota
	carrying
	lost
	closed
)

// The flags that a gateway passes on to the peer's library, and those that it reads from its own.
const (
	passedOn = inprocess.Attached | inprocess.Recall
	said     = passedOn | inprocess.Gone | inprocess.Asks
)

// End is one end of a promoted connection between hosts. Its methods are safe for concurrent use: they post their work
// to the end's shard, which does it in order.
type End struct {
	cfg   Config
	shard *loop.Shard
	mem   memory
	lent  *carrier.Memory
	own   *words // the library's
	mir   *words // this gateway's
	bell  int
	sock  int    // duplicate of the program's; -1: none
	knock knock  // makes the calls on it
	size  uint64 // of each ring, in bytes

	phase  phase
	links  []*way
	picked *way // the link that carries, or will
	ep     *rsocket.Endpoint
	copies bool // the device could not register the mirror's ring, so what arrives is copied

	head, tail  uint64 // of own, as last taken
	said        Said
	told, freed uint64 // head and tail of the mirror, as last published
	arms        uint32 // how often this end has asked for its bell
	rung        uint32 // the latest arm of own that was rung for
	room        uint32 // the latest want of own that was answered

	hot, queued bool
	until       time.Time  // hot until then, unless something happens
	rests       loop.Timer // tells the peer what the library has read
	settled     func()     // called once the peer knows it
	ended       ended
	sent        bool   // the peer's kernel has what the process had given to its own
	final       uint64 // total that the peer's process has written
	finished    bool   // whether final is known
	failure     error  // lose the carrier with this error at the end of the turn

	bells, doorbells atomic.Uint64 // from the library, and to it: tests count them
}

var _ loop.Servicer = (*End)(nil)

// ended is the state of the end's own process.
type ended uint8

const (
	lives ended = iota
	sends       // no more, but the kernel still sends what it has written
	died        // but what it has written to the ring must still be sent
	drained
)

// New makes an end and its memory. The caller passes the portion on to the end's process.
func New(cfg Config) (*End, shared.Portion, error) {
	if cfg.Order < inprocess.OrderMin || cfg.Order > inprocess.OrderMax || cfg.Side > 1 {
		return nil, shared.NoPortion, fmt.Errorf("end of side %d with rings of 2^%d bytes: %w", cfg.Side, cfg.Order, ErrNonsense)
	}
	mem, portion, err := newMemory(&cfg)
	if err != nil {
		return nil, portion, err
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		portion.Bell, err = unix.FcntlInt(uintptr(bell), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		mem.unmap()
		portion.Close()
		shared.Close(&bell)
		return nil, shared.NoPortion, fmt.Errorf("bell: %w", err)
	}
	e := &End{
		cfg: cfg, shard: cfg.Hub.shard, mem: mem, lent: mem.lend(), own: wordsOf(mem.own), mir: wordsOf(mem.mirror),
		bell: bell, sock: -1, size: 1 << cfg.Order,
	}
	e.rests = loop.NewTimer(e.rested)
	e.knock = knock{e: e, heldUp: heldUp{calls: new(aside), shard: e.shard}}
	if cfg.Desk != nil {
		e.knock.calls = cfg.Desk.calls
	}
	e.post(e.listen)
	return e, portion, nil
}

// post runs fn on the shard, on behalf of the owner, unless the end is closed.
func (e *End) post(fn func()) {
	e.shard.Post(func() {
		e.shard.WorksFor(e.cfg.Owner)
		if e.phase != closed {
			fn()
		}
	})
}

// listen starts watching the library's words and bell.
func (e *End) listen() {
	if err := e.shard.WatchReads(e.bell, func(uint32) { e.ringing() }); err != nil {
		e.lose(err)
		return
	}
	e.cfg.Hub.heat(e)
}

// Owner implements loop.Work.
func (e *End) Owner() loop.Owner { return e.cfg.Owner }

// ProcessEnded reports that no process has the end's memory any more. What was written is still sent on. The duplicate
// of the socket lingers: as in Close, if the library has ended the kernel connection, and otherwise until the peer's
// kernel has acknowledged all that the process wrote. Then it is closed.
func (e *End) ProcessEnded() {
	e.post(func() {
		if e.ended != lives {
			return
		}
		e.ended = died
		if e.sock >= 0 && e.own.flags.Load()&inprocess.Gone == 0 {
			e.ended = sends
		}
		e.linger()
		e.cfg.Hub.drop(e)
		e.later() // for its last words
	})
}

// hasSent notes whether the peer's kernel has all that the process, which has ended, had given to its own.
func (e *End) hasSent(all bool) {
	if e.phase == closed {
		return
	}
	e.shard.WorksFor(e.cfg.Owner)
	e.ended, e.sent = died, all
	e.later()
}

// Tell passes on the flags of the peer's library.
func (e *End) Tell(flags uint32) {
	e.post(func() {
		if e.phase != lost {
			e.say(e.mir.flags.Load()&^passedOn | flags&passedOn)
		}
	})
}

// TellOpening passes on where the peer's library has opened its direction, or how much it has given to the kernel so
// far. answers is the number of [Said].Questions that the peer was asked for that; 0: it says so by itself. last says
// that it does not open its direction any more.
func (e *End) TellOpening(o Opening, answers uint32, last bool) {
	e.post(func() {
		e.hear() // the library may have asked once more
		latest := answers != 0 && answers == e.said.Questions
		e.mir.ksent.Store(o.Ksent)
		if o.Opened {
			e.mir.first.k.Store(o.At)
			e.mir.nx.Store(1)
		}
		flags := e.mir.flags.Load()
		if e.own.flags.Load()&inprocess.Asks != 0 && (latest || o.Opened) {
			flags |= inprocess.Asks
		}
		if last {
			flags |= inprocess.Left
		}
		e.mir.flags.Store(flags)
		e.announce()
	})
}

// Where reads from the library's words how far it is, and calls done on the shard.
func (e *End) Where(done func(Opening)) { e.post(func() { done(e.opening()) }) }

// Settle calls then on the shard once the peer gateway has everything that the library has written, and knows that it
// has read everything, if it has; at the latest after a second, or when the carrier or the peer's process has ended.
// Before, it tells the library that the carrier has ended. It takes the place of an earlier call that is not done.
func (e *End) Settle(then func()) {
	e.post(func() {
		e.settled = then
		e.shard.SetTimer(&e.rests, e.shard.Now().Add(settleFor))
		e.later()
	})
}

// PeerEnded reports that the peer's process has ended, how many bytes it had written in total, and, as in
// [Owner].Drained, read. The library learns of the end once they have all come.
func (e *End) PeerEnded(bytes, read uint64) {
	e.post(func() {
		e.mir.got.Store(read)
		e.final, e.finished = bytes, true
		e.takeIn()
		e.shut()
		e.settle()
	})
}

// PeerLeft reports that the peer's library has left the ring in both directions, after the last TellOpening. It ends the
// carrier, as Lose does.
func (e *End) PeerLeft() {
	e.post(func() { e.say(e.mir.flags.Load() | inprocess.Left) })
	e.Lose()
}

// Rings gives the end a duplicate of the program's socket, for ringing its doorbell from now on. The end owns it.
func (e *End) Rings(fd int) {
	e.shard.Post(func() {
		e.shard.WorksFor(e.cfg.Owner)
		e.letGo()
		if e.sock = fd; e.phase == closed || e.ended != lives {
			e.letGo()
			return
		}
		e.knock.widens = true
		e.knock.ask()
		e.ring() // for what has come meanwhile
		e.announce()
	})
}

// widen makes the send buffer of a socket large enough for all that the library may give to the kernel at once, as when
// it closes the socket: natively the kernel would have had those bytes all along. The library may not do so itself.
func widen(fd, want int) {
	if had, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && had < 2*want { // doubled by the kernel
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, want)
	}
}

// Lose ends the carrier, and tells the library, but not the owner, that it has ended.
func (e *End) Lose() {
	e.post(func() {
		if e.phase < lost {
			e.takeIn()
			e.part()
		}
	})
}

// Close ends the end: its links, and its memory once no device uses it. A library that is still there learns that the
// carrier has ended. Once the end touches nothing any more, and no program holds up a call of its, then is called on the
// shard. The duplicate of a socket that still has bytes to send before its FIN is kept until the peer's kernel has
// acknowledged them.
func (e *End) Close(then func()) {
	defer e.shard.Post(func() {
		if e.knock.state == idle {
			then()
			return
		}
		e.knock.then = then
	})
	e.post(func() {
		e.say(e.mir.flags.Load() | inprocess.Gone)
		e.linger()
		e.cfg.Hub.drop(e)
		e.shard.SetTimer(&e.rests, time.Time{})
		e.leave()
		e.phase = closed
		e.shard.Unwatch(e.bell)
		_ = unix.Close(e.bell)
		e.lent.Release()
	})
}

// LeaveDevice takes the end off a device that is given up: if its carrier is a link for which uses returns true, the
// carrier is lost. uses is called on the shard.
func (e *End) LeaveDevice(kind negotiate.CarrierKind, uses func(*carrier.Link) bool) {
	e.post(func() {
		e.links = slices.DeleteFunc(e.links, func(w *way) bool {
			switch {
			case w.Kind != kind || !uses(w.Link):
				return false
			case w == e.picked:
				e.fail(carrier.ErrYielded)
				return false
			}
			w.close()
			return true
		})
	})
}

// leave closes all links.
func (e *End) leave() {
	for _, w := range e.links {
		w.close()
	}
	e.links = nil
}

// fail loses the carrier at the end of the turn, after the completions that precede the failure.
func (e *End) fail(err error) {
	if e.failure == nil {
		e.failure = err
		e.later()
	}
}

// lose ends the carrier because of a failure.
func (e *End) lose(err error) {
	e.takeIn()
	why := negotiate.ReasonDeviceFailed
	switch {
	case errors.Is(err, carrier.ErrYielded):
		why = negotiate.ReasonDrained
	case errors.Is(err, ErrNonsense):
		why = negotiate.ReasonProtocolError
	case e.phase == carrying && !e.finished: // once the peer's process has ended, its gateway gives up the carrier
		why = e.picked.Reason(err)
	}
	e.part()
	e.cfg.Owner.Lost(why, err)
}

// takeIn publishes what has already arrived.
func (e *End) takeIn() {
	if e.phase == carrying {
		e.shard.Collect()
		e.free()
		e.arrive()
	}
}

// part leaves the carrier. The library's flags are still examined: it may ask where the peer's library is.
func (e *End) part() {
	e.phase = lost
	e.leave()
	e.say(e.mir.flags.Load() | inprocess.Gone)
	e.settle()
}

// say sets the flags of the mirror, and wakes the library if they have changed.
func (e *End) say(flags uint32) {
	if flags == e.mir.flags.Load() {
		return
	}
	e.mir.flags.Store(flags)
	e.announce()
	if flags&(inprocess.Gone|inprocess.Recall) != 0 {
		e.wakeWriter()
	}
}

// opening reads what the library states about its direction. Positions that no stream has lose the carrier, and are not
// told to the peer, whose gateway would end the conversation about all connections.
func (e *End) opening() (o Opening) {
	if o.Opened = e.own.nx.Load() == 1; o.Opened { // nx before the words that it publishes
		o.At = e.own.first.k.Load()
	}
	o.Ksent = e.own.ksent.Load()
	if o.At|o.Ksent > math.MaxInt64 {
		e.fail(fmt.Errorf("opens at %d, after %d: %w", o.At, o.Ksent, ErrNonsense))
		o.At, o.Ksent = 0, 0
	}
	return o
}
