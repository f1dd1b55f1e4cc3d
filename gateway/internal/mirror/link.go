package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// ErrUnproved means that the proof of a carrier did not come back in time.
var ErrUnproved = errors.New("carrier not proved")

var errClosed = errors.New("closed meanwhile")

// way is one link of an end, and its carrier.User.
type way struct {
	*carrier.Link
	e       *End
	proof   func(error) // reports its outcome; nil: none is under way
	timeout loop.Timer
}

var _ carrier.User = (*way)(nil)

func (e *End) newWay() *way {
	w := &way{e: e}
	w.timeout = loop.NewTimer(func() {
		e.shard.WorksFor(e.cfg.Owner)
		w.Unproved()
		w.proved(ErrUnproved)
	})
	return w
}

// request describes a link that uses the end's memory.
func (e *End) request(w *way) carrier.Request {
	return carrier.Request{User: w, Shard: e.shard, ID: e.cfg.ID, Local: e.cfg.Local, Remote: e.cfg.Remote, Memory: e.lent}
}

// Offer makes a link of one device, at the client's side, and returns the offer by which the peer reaches it. It may
// block. Call it at most once for each device, before Prove. A Close meanwhile closes the link, too.
func (e *End) Offer(p carrier.Provider) (offer negotiate.CarrierOffer, err error) {
	if !e.lent.TryHold() { // until the link holds it
		return offer, errClosed
	}
	defer e.lent.Release()
	w := e.newWay()
	if w.Link, offer, err = p.Offer(e.request(w)); err != nil {
		return offer, err
	}
	e.shard.Post(func() { e.add(w) })
	return offer, nil
}

// close stops the link's timer and closes it.
func (w *way) close() {
	w.e.shard.SetTimer(&w.timeout, time.Time{})
	w.Close()
}

// add adds a link. If the end is past needing it, add closes the link and returns false.
func (e *End) add(w *way) bool {
	e.shard.WorksFor(e.cfg.Owner)
	if e.phase != made {
		w.Close()
		return false
	}
	e.links = append(e.links, w)
	return true
}

// Answer makes the link of a device at the server's side, connected to the one that from describes. done is called on
// the shard, unless the end is closed or lost before.
func (e *End) Answer(p carrier.Provider, from negotiate.CarrierOffer, proposal *negotiate.Proposal, done func(negotiate.CarrierOffer, error)) {
	e.post(func() {
		w := e.newWay()
		e.lent.Hold()
		p.Answer(e.request(w), from, proposal, func(l *carrier.Link, offer negotiate.CarrierOffer, err error) {
			e.lent.Release()
			switch w.Link = l; {
			case err == nil && !e.add(w), e.phase != made:
				return
			case err == nil:
				e.picked = w
			}
			done(offer, err)
		})
	})
}

// Prove connects the link whose offer was answered, proves that full-size packets come through, and closes the other
// links. done is called on the shard once, unless the end is closed or lost before.
func (e *End) Prove(to negotiate.CarrierOffer, timeout time.Duration, done func(error)) {
	e.post(func() {
		i := slices.IndexFunc(e.links, func(w *way) bool { return w.Offered() == to.Kind })
		if i < 0 || e.picked != nil {
			done(fmt.Errorf("carrier %v was not offered: %w", to.Kind, ErrNonsense))
			return
		}
		w := e.links[i]
		e.pick(w)
		w.proof = done
		e.shard.SetTimer(&w.timeout, time.Now().Add(timeout))
		w.Prove(to, timeout, func(warm bool, err error) {
			if warm || err != nil {
				w.proved(err)
			}
		})
	})
}

// pick chooses the link that is to carry, and closes the others.
func (e *End) pick(w *way) {
	for _, other := range e.links {
		if other != w {
			other.close()
		}
	}
	e.links, e.picked = append(e.links[:0], w), w
}

// Start lets bytes flow. Call it once CONFIRM is sent or received.
func (e *End) Start() {
	e.post(func() {
		if e.phase != made || e.picked == nil {
			return
		}
		e.phase, e.ep = carrying, e.picked.EP
		e.copies = &e.ep.Ring()[0] != &e.rx()[0]
		e.picked.Begin()
		e.later()
	})
}

// proved ends a proof and reports its outcome.
func (w *way) proved(err error) {
	done := w.proof
	w.proof = nil
	w.e.shard.SetTimer(&w.timeout, time.Time{})
	if done != nil && w.e.phase != closed {
		done(err)
	}
}

// Owner implements loop.Work.
func (w *way) Owner() loop.Owner { return w.e.cfg.Owner }

func (w *way) Completed(ev rsocket.Events, ok bool) {
	switch {
	case w.Carries():
		w.e.later()
	case !ok:
		w.concluded(rsocket.ErrConnection)
	case ev.Has(rsocket.EventProved):
		w.Proved()
		w.concluded(nil)
	}
}

// concluded posts the end of a proof, to run outside the handling of completions.
func (w *way) concluded(err error) {
	if w.proof != nil {
		w.e.post(func() { w.proved(err) })
	}
}

func (w *way) Broken() { w.e.fail(rsocket.ErrConnection) }

func (w *way) Violated() { w.e.fail(fmt.Errorf("queue pair: %w", ErrNonsense)) }

// memory is the mappings of an end's two files: own for reading, mirror for writing.
type memory struct{ own, mirror []byte }

// newMemory makes and maps both files.
func newMemory(cfg *Config) (m memory, p shared.Portion, err error) {
	p = shared.NoPortion
	defer func() {
		if err != nil {
			m.unmap()
			p.Close()
		}
	}()
	size := inprocess.EndSize(cfg.Order)
	if p.Own, err = shared.NewMemory("smcgw-end", size, head(cfg, cfg.Side), unix.F_SEAL_SEAL); err != nil {
		return m, p, err
	}
	m.own, err = unix.Mmap(p.Own.Read, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	shared.Close(&p.Own.Read)
	if err != nil {
		return m, p, fmt.Errorf("map memory of an end: %w", err)
	}
	if p.Mirror, err = shared.NewMemory("smcgw-mirror", size, head(cfg, 1-cfg.Side), 0); err != nil {
		return m, p, err
	}
	m.mirror, err = unix.Mmap(p.Mirror.Write, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return m, p, fmt.Errorf("map mirror: %w", err)
	}
	wordsOf(m.mirror).nonce = cfg.Nonces
	err = shared.Seal(p.Mirror.Write, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	shared.Close(&p.Mirror.Write)
	return m, p, err
}

// head returns the first bytes of a side's memory. The size of the ring in them never changes.
func head(cfg *Config, side uint32) []byte {
	b := make([]byte, inprocess.EndOrder+4)
	copy(b, shared.EndHead(cfg.ID, side, cfg.Order))
	binary.NativeEndian.PutUint32(b[inprocess.EndOrder:], cfg.Order)
	return b
}

// lend wraps the rings of both files for links, which send from the one and receive into the other.
func (m memory) lend() *carrier.Memory {
	return carrier.NewMemory(m.own[inprocess.RingAt:], m.mirror[inprocess.RingAt:], m.unmap)
}

func (m memory) unmap() {
	for _, b := range [][]byte{m.own, m.mirror} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
}
