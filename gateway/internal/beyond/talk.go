package beyond

import (
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

const (
	readSize = 64 << 10
	// maxOffers bounds the connections of one control connection that are not promoted yet.
	maxOffers = 4096
	proveTime = 8 * time.Second // less than the peer waits
	// aloneTime is how long a process that has disconnected from the broker has to end. If it has not by then, it goes
	// on without the broker.
	aloneTime = time.Second
	// saidWithin is how long the peer's reason for closing a carrier may take.
	saidWithin = 200 * time.Millisecond
)

// errNoGateway means that the peer ended the control connection before its HELLO.
var errNoGateway = errors.New("the peer does not greet")

// errDropped means that the end has been dropped meanwhile.
var errDropped = errors.New("the end is over")

// talk is one control connection. Events are posted as jobs, which one goroutine runs.
type talk struct {
	s    *Service
	peer netip.Addr

	mu     sync.Mutex // guards jobs and done
	jobs   []func(now time.Time)
	done   bool // no more jobs are run
	waking chan struct{}

	// Owned by the goroutine that runs the jobs.
	ctl           *between.Control
	conn          net.Conn
	local, remote netip.Addr
	hello         between.Hello // the peer's
	order         uint32        // the largest of an end that this side offers, by the peer's last ANSWER
	greeted       bool
	over          bool             // the control connection has ended
	leaving       negotiate.Reason // why it is about to end by this side; ReasonNone: it is not
	failure       error
	refusal       between.Closed // of a gateway that did not greet, as it wants other keys or another version
	writing       bool
	early         list.List // ends of clients, to be offered once the peer has greeted and there is room
	making        int       // ends whose offers are being made
	most          int       // ends whose offers are made or not answered yet
	ends          map[uint64]*end
	all           map[*end]struct{}
	wishes        map[uint64]between.Offer
	write         chan []byte
}

func (s *Service) newTalk(peer netip.Addr) *talk {
	return &talk{
		s: s, peer: peer, waking: make(chan struct{}, 1), ends: map[uint64]*end{}, all: map[*end]struct{}{}, wishes: map[uint64]between.Offer{},
		write: make(chan []byte, 1), order: inprocess.OrderMax, most: maxOffers,
	}
}

// post queues a job. It returns false if the talk runs no more jobs.
func (t *talk) post(job func(now time.Time)) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return false
	}
	t.jobs = append(t.jobs, job)
	select {
	case t.waking <- struct{}{}:
	default:
	}
	return true
}

// take returns the queued jobs. If last and there are none, no more are accepted.
func (t *talk) take(last bool) []func(time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	jobs := t.jobs
	t.jobs = nil
	t.done = last && len(jobs) == 0
	return jobs
}

// err returns why the peer should not be asked for a while, or nil.
func (t *talk) err() error {
	if t.greeted {
		return nil
	}
	return errors.Join(errNoGateway, t.failure)
}

// refuse ends a talk whose connection could not be made.
func (t *talk) refuse() {
	t.over = true
	for jobs := t.take(true); len(jobs) > 0; jobs = t.take(true) {
		for _, job := range jobs {
			job(time.Now())
		}
	}
}

// run serves the control connection until it and all its ends have ended.
func (t *talk) run(c net.Conn, opener bool) {
	t.conn = c
	local, remote := addrOf(c.LocalAddr()), addrOf(c.RemoteAddr())
	t.local, t.remote = local.Addr().Unmap(), remote.Addr().Unmap()
	h := between.Hello{GatewayID: t.s.cfg.GatewayID, HostID: t.s.cfg.HostID}
	_, _ = rand.Read(h.Random[:]) // never fails
	t.ctl = between.New(between.Config{
		Opener: opener, Local: local, Remote: remote, Hello: h, Keys: t.s.cfg.Keys(), MaxConns: t.s.cfg.MaxConns, MaxOffers: t.most,
	}, time.Now())
	var io sync.WaitGroup
	stop := make(chan struct{})
	io.Go(func() { t.read(stop) })
	io.Go(func() { t.writes(stop) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		finished := t.over && len(t.all) == 0
		jobs := t.take(finished)
		if finished && len(jobs) == 0 {
			break
		}
		now := time.Now()
		for _, job := range jobs {
			job(now)
		}
		if t.leaving != negotiate.ReasonNone && t.heardAll() {
			t.finish(now)
		}
		t.offers()
		t.send()
		switch {
		case !t.over:
			timer.Reset(time.Until(t.ctl.Deadline()))
		case len(t.all) == 0:
			continue
		}
		select {
		case <-t.waking:
		case <-timer.C:
			if !t.over {
				t.do(t.ctl.Tick(time.Now()))
			}
		}
	}
	close(stop)
	_ = c.Close()
	io.Wait()
}

func addrOf(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // TCP
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// read posts what the peer sends, one piece at a time.
func (t *talk) read(stop chan struct{}) {
	b := make([]byte, readSize)
	taken := make(chan struct{})
	for {
		n, err := t.conn.Read(b)
		if !t.post(func(now time.Time) {
			defer func() { taken <- struct{}{} }()
			switch {
			case t.over:
			case n > 0:
				t.do(t.ctl.Receive(now, b[:n]))
			}
			if err != nil && !t.over {
				t.failure = err
				t.do(t.ctl.Broken())
			}
		}) {
			return
		}
		select {
		case <-taken:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// writes writes what it is given, and posts the outcome.
func (t *talk) writes(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case b := <-t.write:
			n, err := t.conn.Write(b)
			t.post(func(time.Time) {
				t.writing = false
				t.ctl.Wrote(n)
				if err != nil && !t.over {
					t.failure = err
					t.do(t.ctl.Broken())
				}
			})
		}
	}
}

// send hands pending bytes to writes, unless it is still writing, or the connection is closed.
func (t *talk) send() {
	if b := t.ctl.Pending(); len(b) > 0 && !t.writing && !t.over {
		t.writing = true
		t.write <- slices.Clone(b)
	}
}

// end ends all carriers, then closes the control connection from this side. In between, for closeTime at most, both
// sides learn which directions the other's libraries have not opened: those connections can be promoted again. And the
// carriers of processes that have ended bring what those have written, which is nowhere else.
func (t *talk) end(why negotiate.Reason) {
	t.leaving = why
	for e := range t.all {
		switch {
		case e.phase == waiting || t.over || t.ends[e.number] != e:
			t.drop(e)
		case e.alone && e.phase != lost:
		default:
			e.blame(why, false)
			e.mir.Load().Lose()
			t.lastPlace(e, why)
			t.loses(e)
		}
	}
	time.AfterFunc(closeTime, func() { t.post(t.finish) })
}

// closing reports whether the control connection has ended, or is about to end by this side.
func (t *talk) closing() bool { return t.over || t.leaving != negotiate.ReasonNone }

// heardAll reports whether the peer has said the last of all ends.
func (t *talk) heardAll() bool {
	for e := range t.all {
		if !e.heard {
			return false
		}
	}
	return true
}

// finish closes the control connection from this side, and drops all its ends.
func (t *talk) finish(now time.Time) {
	if !t.over && t.ctl != nil {
		t.do(t.ctl.Close(now, t.leaving))
	}
	for e := range t.all {
		t.drop(e)
	}
}

// do carries out the actions of the control connection's state machine.
func (t *talk) do(todo []between.Action) {
	for _, a := range todo {
		switch a := a.(type) {
		case between.Greeted:
			t.greet(a.Peer)
		case between.Find:
			if t.closing() { // one before it in the same piece may have ended the connection
				break
			}
			t.wishes[a.Number] = a.Offer
			if !t.s.find(t, a.Number, nameOf(&a.Offer)) {
				delete(t.wishes, a.Number)
				t.do(t.ctl.Decline(time.Now(), a.Number, negotiate.ReasonFlowLimit))
			}
		case between.Prove:
			t.order = uint32(a.Order)
			t.prove(t.ends[a.Number], a.Carriers)
		case between.Carry:
			t.carry(t.ends[a.Number], a.Carrier)
		case between.Tell:
			t.with(a.Number, func(e *end) {
				var flags uint32
				if a.Attached {
					flags |= inprocess.Attached
				}
				if a.Recall {
					flags |= inprocess.Recall
				}
				e.mir.Load().Tell(flags)
			})
		case between.TellPlace:
			t.with(a.Number, func(e *end) {
				var answers uint32
				if a.Latest {
					answers = e.said.Questions
				}
				e.mir.Load().TellOpening(openingOf(a.Place), answers, a.Last)
				e.heard = e.heard || a.Last
			})
		case between.Ask:
			t.with(a.Number, func(e *end) { t.opened(e, negotiate.ReasonNone, func(time.Time) {}) })
		case between.PeerEnded:
			t.with(a.Number, func(e *end) { t.peerEnded(e, &a) })
		case between.Lose:
			t.lose(a)
		case between.Closed:
			t.close(a)
		}
	}
}

// nameOf returns the connection's name in an offer.
func nameOf(o *between.Offer) broker.Sequences {
	return broker.Sequences{Mine: o.Name.ClientISN, Peer: o.Name.ServerISN}
}

// with calls fn for the end with that number, if it has a mirror.End.
func (t *talk) with(number uint64, fn func(e *end)) {
	if e := t.ends[number]; e != nil && e.mir.Load() != nil {
		fn(e)
	}
}

func (t *talk) greet(peer between.Hello) {
	t.hello, t.greeted = peer, true
	if peer.GatewayID == t.s.cfg.GatewayID { // the address leads back to this gateway
		t.greeted = false
		t.do(t.ctl.Close(time.Now(), negotiate.ReasonAddress))
		return
	}
	t.s.meet(t.peer)
}

// close handles the end of the control connection.
func (t *talk) close(a between.Closed) {
	t.over = true
	t.s.over(t)
	if b := t.ctl.Pending(); len(b) > 0 && !t.writing { // the last words, if nothing is being written
		_ = t.conn.SetWriteDeadline(time.Now().Add(closeTime))
		_, _ = t.conn.Write(b)
	}
	_ = t.conn.Close()
	if a.Reason != negotiate.ReasonNone {
		level := slog.LevelInfo
		if !t.greeted || !t.s.lines.Allow() {
			level = slog.LevelDebug
		}
		t.s.cfg.Log.Log(t.s.ctx, level, "control connection has ended", "peer", t.peer, "reason", a.Reason, "remote", a.Remote)
	}
	if !t.greeted && (a.Reason == negotiate.ReasonAuthFailed || a.Reason == negotiate.ReasonVersion) {
		t.refusal = a
	}
	for at := t.early.Front(); at != nil; at = t.early.Front() {
		t.pass(t.next(at))
	}
	for e := range t.all {
		if e.phase == waiting {
			t.drop(e)
		}
	}
}

// pass hands a client's end, which was not offered here, on to the next host.
func (t *talk) pass(e *end) {
	delete(t.all, e)
	if t.refusal.Reason != negotiate.ReasonNone {
		e.blame(t.refusal.Reason, t.refusal.Remote)
	}
	t.s.seek(e, e.left)
}

// begin takes a client's end, and offers it once the peer has greeted and there is room.
func (t *talk) begin(_ time.Time, e *end) {
	t.all[e] = struct{}{}
	switch {
	case t.over && !t.greeted:
		t.pass(e)
	case t.closing(): // it was over just before; the peer has a gateway
		delete(t.all, e)
		t.s.seek(e, e.hosts)
	default:
		e.early = t.early.PushBack(e)
	}
}

// next takes an end out of those that wait to be offered.
func (t *talk) next(at *list.Element) *end {
	e := t.early.Remove(at).(*end) //nolint:forcetypeassert // begin puts nothing else there
	e.early = nil
	return e
}

// offers offers the ends that wait for it, as far as there is room.
func (t *talk) offers() {
	for t.greeted && !t.closing() && t.early.Len() > 0 && t.making+t.ctl.Waiting() < t.most {
		t.offer(t.next(t.early.Front()))
	}
}

// offer has the links of a client's end made, in another goroutine, and then offered to the peer.
func (t *talk) offer(e *end) {
	_, _ = rand.Read(e.nonces[0][:])
	_, _ = rand.Read(e.nonces[1][:])
	if err := e.make(t, min(t.order, t.s.ringOrder(t.adapter(e)), e.half.MostOrder)); err != nil {
		e.debug("no end", err)
		e.blame(makeReason(err), false)
		t.drop(e)
		return
	}
	t.making++
	t.s.work.Go(func() {
		offers, why := t.makeOffers(e)
		t.post(func(now time.Time) {
			t.making--
			t.offered(now, e, offers, why)
		})
	})
}

// makeOffers makes the links of an end. It returns why there is none, if there is none. It blocks.
func (t *talk) makeOffers(e *end) (offers []negotiate.CarrierOffer, why negotiate.Reason) {
	why = negotiate.ReasonNoCommonCarrier
	for _, p := range t.s.cfg.Providers {
		if !t.s.cfg.Pays(e.half, p.Kind()) || !t.reaches(p) {
			continue
		}
		if t.resting(p) {
			why = carrier.MoreLocal(why, negotiate.ReasonCarrierUnreachable)
		} else if o, err := e.mir.Load().Offer(p); err != nil {
			e.debug("offer", err)
			why = carrier.MoreLocal(why, carrier.OfferReason(err))
		} else {
			offers = append(offers, o)
		}
	}
	return offers, why
}

// offered offers the links of an end to the peer, or drops the end because of why if it has none.
func (t *talk) offered(now time.Time, e *end, offers []negotiate.CarrierOffer, why negotiate.Reason) {
	if e.phase == dropped || t.over {
		t.drop(e)
		return
	}
	if len(offers) == 0 {
		e.blame(why, false)
		t.drop(e)
		return
	}
	q := e.half.Socket
	n, todo := t.ctl.Offer(now, &between.Offer{
		Name: between.Name{
			ClientISN: q.Sequences.Mine, ServerISN: q.Sequences.Peer, ClientPort: q.Local.Port(), ServerPort: q.Remote.Port(),
		},
		Order: uint8(e.order), Nonces: e.nonces, Carriers: offers,
	})
	if n == 0 {
		e.blame(negotiate.ReasonFlowLimit, false)
		t.drop(e)
	} else {
		e.number, t.ends[n] = n, e
	}
	t.do(todo)
}

// ringOrder returns the binary logarithm of the size of the next end's rings. The largest hold as much as a stream has in
// flight while the two programs and gateways wait for a processor in turn. An adapter locks them in memory, so they are
// smaller for one. Even small messages use all of a ring in time, and where many ends use large rings, no cache holds
// them. So the ends share the memory of largeRings ends with the largest rings, but have at least fairOrder; and no end
// gets more than 1/ringShare of what Config.Memory has left, or the smallest rings.
func (s *Service) ringOrder(adapter bool) uint32 {
	most := uint32(inprocess.OrderMax)
	if adapter {
		most--
	}
	s.mu.Lock()
	ends := int64(s.conns + 1)
	s.mu.Unlock()
	fair := max(largeRings*inprocess.PairSize(inprocess.OrderMax)/ends, inprocess.PairSize(fairOrder))
	return inprocess.OrderWithin(min(fair, (s.cfg.Memory-s.rings.Load())/ringShare), most)
}

// adapter reports whether an adapter may carry an end.
func (t *talk) adapter(e *end) bool {
	return slices.ContainsFunc(t.s.cfg.Providers, func(p carrier.Provider) bool { return p.Kind().OfAdapter() && t.admits(e, p) })
}

// admits reports whether a device may carry an end: the rule that selects the end allows it, and the carrier does not
// rest.
func (t *talk) admits(e *end, p carrier.Provider) bool {
	return t.s.cfg.Pays(e.half, p.Kind()) && !t.resting(p)
}

// reaches reports whether a device may reach the peer at all. An end that waits for a peer under another kernel needs no
// ring in shared memory meanwhile.
func (t *talk) reaches(p carrier.Provider) bool {
	return p.Kind() != negotiate.CarrierSHM || t.hello.HostID == t.s.cfg.HostID
}

func (t *talk) resting(p carrier.Provider) bool {
	return t.s.cfg.Peers.Resting(t.peer, p.Kind(), time.Now())
}

// found handles the match of a peer's offer with the end that has asked.
func (t *talk) found(now time.Time, number uint64, e *end) {
	o, ok := t.wishes[number]
	t.all[e] = struct{}{}
	if !ok || t.closing() { // the offer has ended meanwhile
		t.drop(e)
		return
	}
	delete(t.wishes, number)
	e.number, e.nonces, t.ends[number] = number, o.Nonces, e
	if err := e.make(t, uint32(o.Order)); err != nil {
		e.debug("no end", err)
		why := makeReason(err)
		e.blame(why, false)
		t.do(t.ctl.Decline(now, number, why))
		t.drop(e)
		return
	}
	t.s.work.Go(func() { t.answer(e, o.Carriers) })
}

// answer tries the peer's carriers, in the peer's order, until one can be made.
func (t *talk) answer(e *end, offers []negotiate.CarrierOffer) {
	p := &negotiate.Proposal{HostID: t.hello.HostID, GatewayID: t.hello.GatewayID, Carriers: offers}
	why := negotiate.ReasonNoCommonCarrier
	for i := range offers {
		for _, prov := range t.s.cfg.Providers {
			if !t.admits(e, prov) || !carrier.Answers(prov, offers, i) {
				continue
			}
			answer, err := t.answerBy(e, prov, offers[i], p)
			switch {
			case err == nil:
				t.post(func(now time.Time) {
					if e.phase != dropped {
						e.by = prov.Kind()
						next := min(t.s.ringOrder(prov.Kind().OfAdapter()), e.half.MostOrder)
						t.do(t.ctl.Answer(now, e.number, uint8(next), []negotiate.CarrierOffer{answer}))
					}
				})
				return
			case errors.Is(err, errDropped):
				return
			}
			e.debug("answer", err)
			why = carrier.MoreLocal(why, carrier.AnswerReason(err))
		}
	}
	t.post(func(now time.Time) {
		if e.phase != dropped {
			e.blame(why, false)
			t.do(t.ctl.Decline(now, e.number, why))
			t.drop(e)
		}
	})
}

// answerBy makes one device answer an offer. It blocks.
func (t *talk) answerBy(e *end, prov carrier.Provider, from negotiate.CarrierOffer, p *negotiate.Proposal) (negotiate.CarrierOffer, error) {
	if !prov.Met(from, p) {
		ctx, cancel := context.WithTimeout(t.s.ctx, dialTime)
		defer cancel()
		if err := prov.Meet(ctx, t.peer, from); err != nil {
			return negotiate.CarrierOffer{}, err
		}
	}
	type answer struct {
		offer negotiate.CarrierOffer
		err   error
	}
	done := make(chan answer, 1)
	e.mir.Load().Answer(prov, from, p, func(o negotiate.CarrierOffer, err error) { done <- answer{o, err} })
	select {
	case a := <-done:
		return a.offer, a.err
	case <-e.closing: // in which case Answer does not call back
		return negotiate.CarrierOffer{}, errDropped
	}
}

// prove proves the first carrier that the peer has answered.
func (t *talk) prove(e *end, carriers []negotiate.CarrierOffer) {
	if e == nil || e.phase == dropped {
		return
	}
	to := carriers[0]
	e.mir.Load().Prove(to, proveTime, func(err error) {
		t.post(func(now time.Time) {
			switch {
			case e.phase == dropped:
			case err != nil:
				e.debug("prove", err)
				t.s.cfg.Peers.Failed(t.peer, to.Kind, now)
				e.blame(negotiate.ReasonCarrierUnreachable, false)
				t.do(t.ctl.Decline(now, e.number, negotiate.ReasonCarrierUnreachable))
				t.drop(e)
			default:
				t.do(t.ctl.Proved(now, e.number, to.Kind))
			}
		})
	})
}

// carry starts the carrier that both sides have agreed on, and grants the program its memory.
func (t *talk) carry(e *end, kind negotiate.CarrierKind) {
	if e == nil || e.phase == dropped {
		return
	}
	if e.half.Socket.Role == broker.RoleClient {
		e.by = kind
	}
	e.mir.Load().Start()
	if !e.half.Grant(e.portion.Take(), e.order, e.by.String()) {
		t.do(t.ctl.Decline(time.Now(), e.number, negotiate.ReasonFlowLimit))
		t.do(t.ctl.Left(time.Now(), e.number))
		t.drop(e)
		return
	}
	e.phase = granted
}

// lose handles the peer's or the state machine's end of a carrier, or of an offer.
func (t *talk) lose(a between.Lose) {
	e := t.ends[a.Number]
	if o, ok := t.wishes[a.Number]; ok {
		delete(t.wishes, a.Number)
		t.s.forget(t, a.Number, nameOf(&o))
	}
	if e == nil {
		return
	}
	e.blame(a.Reason, a.Remote)
	e.excused = !fails(a.Reason)
	switch {
	case e.phase == waiting:
		if a.Remote && a.Reason == negotiate.ReasonNoMemory { // until an ANSWER tells more
			t.order = inprocess.OrderMin
		}
		e.debug("not promoted: "+a.Reason.String(), nil)
		t.drop(e)
	default:
		if a.Over {
			delete(t.ends, a.Number)
		}
		e.mir.Load().Lose()
		t.lastPlace(e, a.Reason)
		t.loses(e)
	}
}

// loses records that an end's carrier has ended.
func (t *talk) loses(e *end) {
	if e.phase == granted {
		e.phase = lost
	}
	t.settle(e)
}

// settle ends an end that no process has any more, unless its bytes may still come to a process of the peer.
func (t *talk) settle(e *end) {
	if e.alone && (e.phase == lost || e.ended) {
		t.left(e)
	}
}

// lostBy handles a carrier, or one being set up, that a device has lost.
func (t *talk) lostBy(now time.Time, e *end, why negotiate.Reason, err error) {
	if e.phase > granted {
		return
	}
	if e.ended { // the peer gateway has given up the carrier, too
		t.loses(e)
		return
	}
	e.blame(why, false)
	if e.phase == waiting {
		if !t.over {
			t.do(t.ctl.Decline(now, e.number, why))
		}
		e.debug("not promoted: "+why.String(), err)
		t.drop(e)
		return
	}
	t.lastPlace(e, why)
	t.loses(e)
	time.AfterFunc(saidWithin, func() {
		t.post(func(now time.Time) { t.note(now, e, why, err) })
	})
}

// note counts a failure of a carrier with the peer, so that it rests if it fails again and again. It is none if the peer
// has closed the carrier for a reason of its own, which may take longer to come than to close it.
func (t *talk) note(now time.Time, e *end, why negotiate.Reason, err error) {
	if e.excused {
		return
	}
	if fails(why) {
		t.s.cfg.Peers.Failed(t.peer, e.by, now)
	}
	if t.s.lines.Allow() {
		t.s.cfg.Log.Info("a connection in process between hosts goes on by the kernel", "peer", t.peer, "reason", why, "error", err)
	}
}

// fails reports whether a reason is a failure of the carrier.
func fails(why negotiate.Reason) bool {
	return why == negotiate.ReasonDeviceFailed || why == negotiate.ReasonCarrierUnreachable
}

// lastPlace tells the peer that an end has lost its carrier, and where its library is. The mirror must have GONE by now,
// or get it before the shard reads the library's words, so that the library opens its direction no more.
func (t *talk) lastPlace(e *end, why negotiate.Reason) { t.opened(e, why, func(time.Time) {}) }

// opened tells the peer where the own library is in the kernel's stream, after why the carrier has ended, if why is one
// for [talk.lastPlace], then calls then.
func (t *talk) opened(e *end, why negotiate.Reason, then func(now time.Time)) {
	e.where(func(p between.Place) {
		t.post(func(now time.Time) {
			if !t.over && t.ends[e.number] == e {
				if why != negotiate.ReasonNone {
					t.do(t.ctl.Decline(now, e.number, why))
				}
				t.do(t.ctl.Opened(now, e.number, p))
			}
			then(now)
		})
	})
}

// peerEnded handles the peer's ENDED, the last message of a number.
func (t *talk) peerEnded(e *end, a *between.PeerEnded) {
	delete(t.ends, e.number)
	e.heard, e.excused = true, true
	if a.Exited {
		e.ended = true
		e.mir.Load().PeerEnded(a.Written, a.Read)
		t.settle(e)
	} else {
		e.mir.Load().PeerLeft()
		t.loses(e)
	}
}

// gone handles an end that no longer waits and was not granted.
func (t *talk) gone(now time.Time, e *end) {
	if _, ok := t.all[e]; !ok { // it was passed on to another host
		t.s.Over(e.half)
		return
	}
	if e.phase == waiting {
		if !t.over && e.number != 0 {
			t.do(t.ctl.Decline(now, e.number, negotiate.ReasonClientGone))
		}
		t.drop(e)
	}
}

// ended handles a granted end that is closed, or whose process has disconnected from the broker.
func (t *talk) ended(_ time.Time, e *end, closed bool) {
	if e.phase == dropped {
		return
	}
	if closed {
		t.left(e)
		return
	}
	e.later = time.AfterFunc(aloneTime, func() { // the process lives, and goes on by the kernel
		t.post(func(now time.Time) {
			if e.phase != dropped && !e.alone {
				t.left(e)
			}
		})
	})
}

// alone handles that no process has the memory of an end any more.
func (t *talk) alone(_ time.Time, e *end) {
	if e.phase == dropped || e.alone {
		return
	}
	e.alone = true
	e.mir.Load().ProcessEnded()
	t.settle(e)
}

// drained handles that the peer has everything that an ended process had written, but for what a reset discards, and
// knows what that had read.
func (t *talk) drained(e *end, bytes, read uint64, reset bool) {
	t.opened(e, negotiate.ReasonNone, func(now time.Time) { t.leave(now, e, !reset, bytes, read) })
}

// left ends an end whose library has left the ring, after telling the peer how far the library got.
func (t *talk) left(e *end) {
	if e.phase >= leaving {
		return
	}
	e.phase = leaving
	e.mir.Load().Settle(func() {
		t.opened(e, negotiate.ReasonNone, func(now time.Time) { t.leave(now, e, false, 0, 0) })
	})
}

// leave tells the peer that an end has ended, and drops it.
func (t *talk) leave(now time.Time, e *end, exited bool, bytes, read uint64) {
	if e.phase == dropped {
		return
	}
	if !t.over && t.ends[e.number] == e {
		if exited {
			t.do(t.ctl.Exited(now, e.number, bytes, read))
		} else {
			t.do(t.ctl.Left(now, e.number))
		}
	}
	t.drop(e)
}

// drop removes an end without telling the peer.
func (t *talk) drop(e *end) {
	if t.ends[e.number] == e {
		delete(t.ends, e.number)
	}
	if e.early != nil {
		t.next(e.early)
	}
	delete(t.all, e)
	e.drop()
}
