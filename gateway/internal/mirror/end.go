package mirror

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// ErrNonsense is a word of a library, or of a peer gateway, that cannot be.
var ErrNonsense = errors.New("impossible word")

// Owner is what an end works for. Its methods are called on the shard of the end and must not wait; after [End.Close] none
// is.
type Owner interface {
	loop.Owner
	// Said tells that the library has changed its flags, or opened its direction.
	Said(s Said)
	// Drained tells, after [End.ProcessEnded] and the last that was Said, that the peer gateway has all that the process had written: so many bytes
	// since the beginning.
	Drained(bytes uint64)
	// Lost tells that the carrier has ended, and that the library knows. Nothing is called after it.
	Lost(why negotiate.Reason, err error)
}

// Said is what a library says of itself beside its bytes.
type Said struct {
	Flags   uint32 // inprocess.Attached, Recall, Gone, Asks, Reset
	Opening Opening
}

// Opening is where a direction goes from the kernel into the ring.
type Opening struct {
	Opened bool
	At     uint64 // the place of OPEN in the kernel's stream, if it is opened
	Ksent  uint64 // bytes given to the kernel before it
}

// Config describes an end.
type Config struct {
	// ID of the connection, and which of its sides the end is.
	ID   uint64
	Side uint32
	// Order is the size of both rings, as a power of two.
	Order uint32
	// Nonces announce OPEN: that of the peer, and that of this end.
	Nonces [2][inprocess.NonceSize]byte
	// Local and Remote are the addresses of the connection.
	Local, Remote netip.Addr
	// Desk is that of its process; nil: it sleeps at no slot.
	Desk *Desk
	// Hub is that of the shard that has the end.
	Hub   *Hub
	Owner Owner
}

// phase is where an end stands.
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

// Flags that a gateway passes on, and those that a library says.
const (
	passedOn = inprocess.Attached | inprocess.Recall
	said     = passedOn | inprocess.Gone | inprocess.Asks | inprocess.Reset
)

// End is one end of a promoted connection between hosts. Its methods may be called by any goroutine: what they ask for is
// done on its shard, in order.
type End struct {
	cfg   Config
	shard *loop.Shard
	mem   memory
	lent  *carrier.Memory
	own   *words // of the library
	mir   *words // of this gateway
	bell  int
	sock  int    // a duplicate of the program's; -1: none
	size  uint64 // of each ring

	phase  phase
	links  []*way
	picked *way // what carries, or is to
	ep     *rsocket.Endpoint
	copies bool // the device could not have the mirror's ring

	head, tail  uint64 // of own, as they were taken
	said        Said
	told, freed uint64 // head and tail of the mirror
	arms        uint32 // how often the bell was asked for
	rung        uint32 // arm of own that was rung for
	room        uint32 // want of own that was answered

	hot, queued bool
	until       time.Time
	ended       ended
	final       uint64 // bytes that the peer's process had written
	finished    bool   // final is known
	failure     error  // what the carrier is to be lost by

	counters
}

var _ loop.Servicer = (*End)(nil)

// ended is what is known of the own process.
type ended uint8

const (
	lives ended = iota
	died        // what it has written goes on
	drained
)

// New makes an end with its memory. The portion is for its process.
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
	e.post(e.listen)
	return e, portion, nil
}

// post has the shard work for the end, until it is closed.
func (e *End) post(fn func()) {
	e.shard.Post(func() {
		e.shard.WorksFor(e.cfg.Owner)
		if e.phase != closed {
			fn()
		}
	})
}

// listen begins to look at the library's words.
func (e *End) listen() {
	if err := e.shard.WatchReads(e.bell, func(uint32) { e.ringing() }); err != nil {
		e.lose(err)
		return
	}
	e.cfg.Hub.heat(e)
}

// Owner implements loop.Work.
func (e *End) Owner() loop.Owner { return e.cfg.Owner }

// ProcessEnded says that the process has ended, and every other that had its memory. What it has written is sent on, and the
// kernel connection ends.
func (e *End) ProcessEnded() {
	e.post(func() {
		if e.ended != lives {
			return
		}
		e.letGo()
		e.cfg.Hub.drop(e)
		e.ended = died
		e.later() // for its last words
	})
}

// Tell says what the flags of the peer's library are.
func (e *End) Tell(flags uint32) {
	e.post(func() {
		if e.phase != lost {
			e.say(e.mir.flags.Load()&^passedOn | flags&passedOn)
		}
	})
}

// TellOpening says where the peer's library has opened its direction, or what it has given to the kernel so far.
func (e *End) TellOpening(o Opening) {
	e.post(func() {
		e.mir.ksent.Store(o.Ksent)
		if o.Opened {
			e.mir.first.k.Store(o.At)
			e.mir.nx.Store(1)
		}
		if e.own.flags.Load()&inprocess.Asks != 0 { // this is the answer
			e.mir.flags.Store(e.mir.flags.Load() | inprocess.Asks)
		}
		e.announce()
	})
}

// Where asks the library's words how far it is; done is called on the shard.
func (e *End) Where(done func(Opening)) { e.post(func() { done(e.opening()) }) }

// PeerEnded says that the peer's process has ended, and how many bytes it had written. The library hears of it when they
// have come.
func (e *End) PeerEnded(bytes uint64) {
	e.post(func() {
		e.final, e.finished = bytes, true
		e.shut()
	})
}

// Rings gives the end a duplicate of the program's socket, by which it rings from now on. It is the end's.
func (e *End) Rings(fd int) {
	e.shard.Post(func() {
		e.letGo()
		if e.sock = fd; e.phase == closed || e.ended != lives {
			e.letGo()
			return
		}
		e.ring() // for what has happened before
		e.announce()
	})
}

// Lose ends the carrier, for a reason that the owner has.
func (e *End) Lose(err error) {
	e.post(func() {
		if e.phase < lost {
			e.lose(err)
		}
	})
}

// Close ends the end: its link, and its memory when no device has it. A library that is still there learns that the carrier
// has ended. then is called on the shard when the end looks at nothing any more. The duplicate of a socket that has bytes to send
// before its FIN is kept until the peer's kernel has them.
func (e *End) Close(then func()) {
	defer e.shard.Post(then)
	e.post(func() {
		e.say(e.mir.flags.Load() | inprocess.Gone)
		e.cfg.Hub.linger(e.sock)
		e.sock = -1
		e.leave()
		e.phase = closed
		e.shard.Unwatch(e.bell)
		_ = unix.Close(e.bell)
		e.lent.Release()
	})
}

// LeaveDevice has the end leave a device that is given up: what carries it by a link that uses is true of is lost. uses is
// called on the shard.
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

// letGo closes the duplicate of the socket.
func (e *End) letGo() {
	shared.Close(&e.sock)
}

// leave ends all links, and looks at the words no more.
func (e *End) leave() {
	e.cfg.Hub.drop(e)
	for _, w := range e.links {
		w.close()
	}
	e.links = nil
}

// fail has the carrier lost, at the end of the turn: there are completions before what failed.
func (e *End) fail(err error) {
	if e.failure == nil {
		e.failure = err
		e.later()
	}
}

// lose ends the carrier. What has come before counts.
func (e *End) lose(err error) {
	why := negotiate.ReasonDeviceFailed
	if e.phase == carrying {
		e.shard.Collect()
		e.arrive()
		e.free()
	}
	switch {
	case errors.Is(err, carrier.ErrYielded):
		why = negotiate.ReasonDrained
	case errors.Is(err, ErrNonsense):
		why = negotiate.ReasonProtocolError
	case e.phase == carrying:
		why = e.picked.Reason(err)
	}
	e.phase = lost
	e.leave()
	e.say(e.mir.flags.Load() | inprocess.Gone)
	e.cfg.Owner.Lost(why, err)
}

// say changes the flags of the mirror.
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

// opening is what the library says of its direction.
func (e *End) opening() (o Opening) {
	if o.Opened = e.own.nx.Load() == 1; o.Opened { // before what it stands for
		o.At = e.own.first.k.Load()
	}
	o.Ksent = e.own.ksent.Load()
	return o
}
