package beyond

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

// phase is how far an end is on this side.
//
//	waiting ── Grant ──► granted ── the carrier ends ──► lost
//	   │                    └── the library leaves the ring ──┴──► leaving
//	   └─────────────────────────► dropped ◄──────────────────────────┘ the peer knows
type phase uint8

const (
	waiting phase = iota // for a carrier: its program has no memory yet
	granted
	lost    // its library goes on by the kernel
	leaving // its carrier is about to end, if it has not
	dropped
)

// end is one end, on this host, of a connection between hosts. Once it has a talk, the talk's goroutine owns it.
type end struct {
	s    *Service
	half *broker.Half
	talk *talk // nil: a server's without an offer, or a client's that has not begun; under the service's lock
	mir  atomic.Pointer[mirror.End]

	hosts   []netip.Addr  // a client's: where the other end may be
	left    []netip.Addr  // of hosts, those not tried yet; under the service's lock
	early   *list.Element // its place among those that wait to be offered; nil: it does not
	number  uint64        // 0: no offer yet
	order   uint32
	by      negotiate.CarrierKind        // this side's device; a server's may have answered for another kind
	nonces  [2][inprocess.NonceSize]byte // of client and server
	portion shared.Portion               // until granted
	said    mirror.Said                  // what the peer was last told
	phase   phase
	heard   bool // the peer has said its last, but for the end of its process
	excused bool // the peer has said why it gives up the carrier, and that is no failure
	alone   bool // no process has the end's memory any more
	ended   bool // so it is with the peer's
	later   *time.Timer
	closing chan struct{} // closed when the end is dropped

	saying sync.Mutex // guards the fields below, which the shard sets
	says   mirror.Said
	posted bool // a job that reads says is posted
}

var _ mirror.Owner = (*end)(nil)

func newEnd(s *Service, h *broker.Half) *end {
	return &end{s: s, half: h, portion: shared.NoPortion, closing: make(chan struct{})}
}

// errFull means that there are as many connections between hosts as there may be, of all users or of one.
var errFull = errors.New("too many connections between hosts")

// errMemory means that a peer wants larger rings than there is memory for, or than the program may have. There is always
// room for the smallest: the number of connections bounds them.
var errMemory = errors.New("the rings are too large")

// makeReason returns the reason for an error of make.
func makeReason(err error) negotiate.Reason {
	switch short := carrier.Shortage(err); {
	case errors.Is(err, errFull):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, broker.ErrGone):
		return negotiate.ReasonClientGone
	case short != negotiate.ReasonNone:
		return short
	default:
		return negotiate.ReasonNoMemory
	}
}

// make makes the mirror.End of the end, with rings of 2^order bytes.
func (e *end) make(t *talk, order uint32) error {
	uid := e.half.Process.UID
	if order > inprocess.OrderMin && (order > e.half.MostOrder || e.s.rings.Load()+inprocess.PairSize(order) > e.s.cfg.Memory) {
		return errMemory
	}
	if !e.s.enters(uid) {
		return errFull
	}
	d, err := e.s.deskOf(e.half)
	if err != nil {
		e.s.leaves(uid)
		return fmt.Errorf("desk: %w", err)
	}
	cfg := mirror.Config{
		ID: e.half.ID, Order: order, Nonces: [2][inprocess.NonceSize]byte{e.nonces[1], e.nonces[0]},
		Local: t.local, Remote: t.remote, Desk: d.Desk, Hub: e.s.hub(), Owner: e,
	}
	if e.half.Socket.Role == broker.RoleServer {
		cfg.Side, cfg.Nonces = 1, e.nonces
	}
	m, p, err := mirror.New(cfg)
	if err != nil {
		e.s.deskGoes(e.half.Member)
		e.s.leaves(uid)
		return err
	}
	e.order, e.portion = order, p
	e.s.rings.Add(inprocess.PairSize(order))
	e.mir.Store(m)
	return nil
}

// drop releases all that the end has. It may be called again. An end that has got no carrier from a peer is refused: if it
// waited on, the next offer would not find it.
func (e *end) drop() {
	if e.phase == dropped {
		return
	}
	was := e.phase
	e.phase = dropped
	if e.talk != nil && was == waiting {
		e.half.Refuse()
	}
	close(e.closing)
	if e.later != nil {
		e.later.Stop()
	}
	e.portion.Close()
	e.s.dropped(e)
	if m := e.mir.Load(); m != nil {
		m.Close(func() {
			e.s.rings.Add(-inprocess.PairSize(e.order))
			e.s.leaves(e.half.Process.UID)
			e.s.deskGoes(e.half.Member)
		})
	}
}

// rings passes the socket on to the mirror.End, or closes it.
func (e *end) rings(fd int) {
	if e.phase == dropped {
		shared.CloseSocket(&fd)
		return
	}
	e.mir.Load().Rings(fd)
}

// where reads from the library's words how far it is in the kernel's stream. A shard calls fn.
func (e *end) where(fn func(between.Place)) {
	e.mir.Load().Where(func(o mirror.Opening) { fn(placeOf(o)) })
}

func placeOf(o mirror.Opening) between.Place {
	return between.Place{Sent: o.Ksent, Opened: o.Opened, At: o.At}
}

func openingOf(p between.Place) mirror.Opening {
	return mirror.Opening{Opened: p.Opened, At: p.At, Ksent: p.Sent}
}

// Said implements mirror.Owner. At most one job is posted at a time, however often the library changes its words.
func (e *end) Said(now mirror.Said) {
	e.saying.Lock()
	defer e.saying.Unlock()
	e.says = now
	if !e.posted {
		e.posted = true
		e.talk.post(func(at time.Time) { e.talk.said(at, e) })
	}
}

// latest returns the library's latest words, and lets Said post again.
func (e *end) latest() mirror.Said {
	e.saying.Lock()
	defer e.saying.Unlock()
	e.posted = false
	return e.says
}

// said tells the peer what is new in the library's words.
func (t *talk) said(now time.Time, e *end) {
	before, s := e.said, e.latest()
	e.said = s
	if e.phase == dropped || t.over || t.ends[e.number] != e {
		return
	}
	if s.Opening.Opened && !before.Opening.Opened {
		t.do(t.ctl.Opened(now, e.number, placeOf(s.Opening)))
	}
	more := s.Flags &^ before.Flags
	if more&inprocess.Attached != 0 {
		t.do(t.ctl.Attached(now, e.number))
	}
	if more&inprocess.Recall != 0 {
		t.do(t.ctl.Recall(now, e.number))
	}
	if s.Questions != before.Questions {
		t.do(t.ctl.Where(now, e.number))
	}
	if more&inprocess.Gone != 0 { // also a child's: it cannot send CLOSED for an end of its parent
		t.ended(now, e, true)
	}
}

func (e *end) Drained(bytes, read uint64, reset bool) {
	e.talk.post(func(time.Time) { e.talk.drained(e, bytes, read, reset) })
}

func (e *end) Lost(why negotiate.Reason, err error) {
	e.talk.post(func(now time.Time) { e.talk.lostBy(now, e, why, err) })
}

// Panicked implements loop.Owner.
func (e *end) Panicked(r any) {
	e.s.cfg.Log.Error("panic in an end between hosts, whose connection goes on by the kernel", "panic", r)
	e.talk.post(func(now time.Time) { // without a last word: it is not known where the library is
		if t := e.talk; !t.over && t.ends[e.number] == e {
			t.do(t.ctl.Decline(now, e.number, negotiate.ReasonInternalError))
		}
		e.talk.drop(e)
	})
}

// blame records for operators why there is no carrier, or no more.
func (e *end) blame(why negotiate.Reason, remote bool) {
	e.half.Blame(broker.Cause{Number: uint8(why), Remote: remote})
}

func (e *end) debug(what string, err error) {
	e.s.cfg.Log.Debug("connection between hosts: "+what, "remote", e.half.Socket.Remote, "error", err)
}
