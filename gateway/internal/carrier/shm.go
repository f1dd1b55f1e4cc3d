package carrier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// elsewhereFor is how long no shared memory is offered to a server that could not reach it.
const elsewhereFor = time.Minute

// Shm is the shared-memory device for gateways under one kernel.
type Shm struct {
	*Driven
	*shmTable
}

// openShm opens the device.
func openShm(env *Env) (Provider, error) {
	table, err := openShmTable(env)
	if err != nil {
		return nil, err
	}
	driven, err := drive(env, table.shm)
	if err != nil {
		return nil, err
	}
	return &Shm{Driven: driven, shmTable: table}, nil
}

// Kind implements Provider.
func (*Shm) Kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

// Offer implements Provider.
func (s *Shm) Offer(r Request) (*Link, negotiate.CarrierOffer, error) {
	p, err := s.peerFor(r)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	return s.newLink(r, p)
}

func (s *Shm) peerFor(r Request) (*ShmPeer, error) {
	if r.Cold {
		return s.coldPeerFor(r.peer())
	}
	return s.PeerFor(r.peer(), true)
}

// Datagrams returns the device for datagrams, whose peers share memory, and its queue on a shard.
func (s *Shm) Datagrams(shard *loop.Shard) (DatagramDevice, *loop.Queue) {
	return DatagramDevice{Device: s.Device, Port: s.Device.Port()}, s.Queue(shard)
}

// OffersAtOnce implements Prompt.
func (s *Shm) OffersAtOnce(r *Request) bool { return !r.Cold && s.ready(r.peer()) }

// describe returns what the other side must know of a queue pair.
func (s *Shm) describe(l *Link, p *ShmPeer) negotiate.CarrierOffer {
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierSHM, Conn: l.connData(),
		SHM: negotiate.SHMEndpoint{Name: p.Name(), Key: p.Key(), QPN: l.QP.Num()},
	}
}

// Met implements Provider: a gateway under another kernel needs no rendezvous.
func (s *Shm) Met(from negotiate.CarrierOffer, p *negotiate.Proposal) bool {
	return p.HostID != s.Driven.env.HostID || s.shm.Attached(from.SHM.Name, from.SHM.Key) != nil
}

// Meet implements Provider.
func (s *Shm) Meet(ctx context.Context, peer netip.Addr, from negotiate.CarrierOffer) error {
	_, err := s.Attach(ctx, peer, from.SHM.Name, from.SHM.Key)
	return err
}

// Answer implements Provider.
func (s *Shm) Answer(r Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done Answered) {
	if p.HostID != s.Driven.env.HostID {
		done(nil, negotiate.CarrierOffer{}, ErrNotHere)
		return
	}
	peer := s.shm.Attached(from.SHM.Name, from.SHM.Key)
	if peer == nil {
		done(nil, negotiate.CarrierOffer{}, fmt.Errorf("shm peer has gone: %w", net.ErrClosed))
		return
	}
	l, offer, err := s.newLink(r, s.adopt(peer, r.peer(), true))
	if err != nil {
		done(nil, offer, err)
		return
	}
	l.reply(offer, from, done)
}

func (*Shm) connect(l *Link, to negotiate.CarrierOffer, done func(error)) {
	done(l.attach(verbs.ConnectAttr(to.SHM.QPN), to.Conn))
}

// answered implements medium. The offer to an address belongs to the gateway that attached to
// it: if a different gateway is there now, it refuses the offer, and the next connection
// makes a new one. A server that accepts another carrier and did not attach is not offered
// shared memory for a while. A server that has no room gets no different offer, since it
// would have none for that either.
func (s *Shm) answered(l *Link, a *negotiate.Accept, why negotiate.Reason) (outdated bool) {
	if a != nil && negotiate.FindCarrier(a.Carriers, negotiate.CarrierSHM) != nil ||
		a == nil && why != negotiate.ReasonDeviceFailed && why != negotiate.ReasonNoCommonCarrier {
		return false
	}
	p := l.peer.(*ShmPeer)
	gw := p.Gateway() // zero: the offer was not taken
	if gw != [16]byte{} && (a == nil || a.GatewayID != gw) {
		s.replaced(p)
		return true
	}
	if a == nil {
		return false
	}
	s.Driven.env.Peers.Unreachable(l.of.peer(), time.Now(), elsewhereFor)
	return false
}

func (*Shm) warm(l *Link) bool { return l.peer.(*ShmPeer).warm.Load() }

func (*Shm) proved(l *Link) { l.peer.(*ShmPeer).warm.Store(true) }

// unproved implements medium. Shared memory has no path to remember anything about.
func (*Shm) unproved(*Link) {}

// newLink makes a queue pair in INIT with its memory. The link takes over the caller's hold
// on the peer, and releases it on failure.
func (s *Shm) newLink(r Request, p *ShmPeer) (*Link, negotiate.CarrierOffer, error) {
	l, err := s.prepare(r, p.PD(), p.arena)
	if err != nil {
		s.Leave(p)
		p.reap() // its part of the arena may have been the last
		return nil, negotiate.CarrierOffer{}, fmt.Errorf("shm: %w", err)
	}
	l.medium, l.peer, l.Kind, l.reap = s, p, negotiate.CarrierSHM, p.reap
	return l, s.describe(l, p), nil
}

// end implements medium. The memory is freed once every loop of the peer has passed a turn;
// until then the peer may not have noticed the end.
func (s *Shm) end(l *Link) {
	l.closePair()
	p := l.peer.(*ShmPeer)
	p.AfterGrace(func() {
		_ = l.EP.Release()
		s.Leave(p)
		p.reap()
	})
}

// reason implements medium. After a failure the carrier must be proved again.
func (*Shm) reason(l *Link, err error) negotiate.Reason {
	p := l.peer.(*ShmPeer)
	p.warm.Store(false)
	switch {
	case errors.Is(err, rsocket.ErrProtocol), errors.Is(p.Err(), shm.ErrViolation):
		return negotiate.ReasonProtocolError
	case errors.Is(p.Err(), shm.ErrDied):
		return negotiate.ReasonPeerDead
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// survives implements medium: the peer gateway is dead if its process is, and a peer that
// broke the rules of shared memory is not trusted again.
func (*Shm) survives(l *Link, err error) bool {
	down := l.peer.(*ShmPeer).Err()
	return !errors.Is(err, rsocket.ErrProtocol) && !errors.Is(down, shm.ErrDied) && !errors.Is(down, shm.ErrViolation)
}

// convicted implements medium. It is always false: a violation of the protocol is reported
// immediately here.
func (*Shm) convicted(*Link) bool { return false }

// abandon implements medium. The queue pair keeps the peer's ring, which holds the tail,
// mapped, and the local ring stays unchanged until the peer has taken its own tail out of it:
// neither can be revoked.
func (s *Shm) abandon(l *Link) (sent, written func()) {
	p := l.peer.(*ShmPeer)
	_ = l.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
	var halves atomic.Int32
	half := func() {
		if halves.Add(1) == 2 {
			s.Leave(p)
		}
		p.reap()
	}
	sent = func() {
		l.Shard.Post(func() {
			l.Shard.WorksFor(l.Owner())
			if err := l.QP.Close(); err != nil {
				s.Driven.env.Log.Warn("close queue pair", "flow_id", l.of.ID, "error", err)
			}
			half()
		})
	}
	return sent, sync.OnceFunc(func() {
		p.AfterGrace(func() {
			_ = l.EP.ReleaseRings()
			half()
		})
	})
}

// Devices implements Provider.
func (s *Shm) Devices() []report.DeviceInfo {
	return []report.DeviceInfo{describeDevice("shm0", report.DeviceShm, s.shm.Attr(), s.shm.Port(), s.shm.Stats())}
}

// Close implements Provider.
func (s *Shm) Close() error {
	err := s.close()
	s.free()
	return err
}

// shmCall is an offer that some flows of an address are attaching to.
type shmCall struct {
	of    netip.Addr
	flows int
}

// Attach attaches to an offer that was made to an address, and returns its peer.
func (t *shmTable) Attach(ctx context.Context, of netip.Addr, name string, key [16]byte) (*ShmPeer, error) {
	if err := t.call(of, key); err != nil {
		return nil, err
	}
	defer t.called(key)
	peer, err := t.shm.Attach(ctx, name, key)
	if err != nil {
		return nil, fmt.Errorf("shm attach: %w", err)
	}
	return t.adopt(peer, of, false), nil
}

// call begins attaching to an offer; called ends it. Concurrent flows with the same offer
// count as one peer.
func (t *shmTable) call(of netip.Addr, key [16]byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[key]
	if c == nil {
		if t.knownLocked(key) == nil { // another flow may have attached meanwhile
			if err := t.admitLocked(of); err != nil {
				return err
			}
		}
		c = &shmCall{of: of}
		t.calls[key] = c
	}
	c.flows++
	return nil
}

func (t *shmTable) called(key [16]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.calls[key]
	if c.flows--; c.flows == 0 {
		delete(t.calls, key)
	}
}
