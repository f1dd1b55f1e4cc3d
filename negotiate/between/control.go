package between

import (
	"errors"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Times of the control connection (docs/protocol/between-hosts.md "Deadlines of the control connection").
const (
	helloTime  = 5 * time.Second
	endTime    = 60 * time.Second       // server, from OFFER: for the end to ask
	answerTime = endTime + proveTime    // client, from OFFER: later than the server's deadline
	proveTime  = 10 * time.Second       // client, from ANSWER
	wordTime   = 2 * proveTime          // server, from ANSWER
	silence    = time.Second            // after which PING is sent, if there are connections
	maxPings   = 3                      // without an answer
	together   = 100 * time.Millisecond // waits that end so close to each other end together: expire looks at all
	idleTime   = time.Minute            // without connections, at the side that offers
	patience   = idleTime + idleTime/2  // at the other side; longer, so as not to close while an OFFER is in flight
)

const (
	// maxUnsent bounds the bytes waiting to be written: one message about each of 2^16 connections.
	maxUnsent = 4 << 20
	// unsentOfNone and unsentOfEach bound them for a peer with few connections, which may be any host.
	unsentOfNone = 64 << 10
	unsentOfEach = 1 << 10
)

// phase is the state of the connection of a number. Both sides follow the same table.
//
//	none ── OFFER ──► offered ── ANSWER ──► answered ── CONFIRM ──► promoted ── DECLINE ──► gone
//	                     │ DECLINE             │ DECLINE               │ ENDED               │ ENDED
//	over  ◄──────────────┴─────────────────────┴───────────────────────┴─────────────────────┘
type phase uint8

const (
	none phase = iota
	offered
	answered
	promoted
	gone
	over
	phases
)

// moves has, for each message about a number, the phases in which it may be sent and read, and the phase that follows.
// A number that is over is forgotten; messages that still come for it were sent before the peer knew.
var moves = [kinds][phases]phase{
	answer:   {offered: answered},
	confirm:  {answered: promoted},
	decline:  {offered: over, answered: over, promoted: gone, gone: gone},
	attached: {promoted: promoted, gone: gone},
	recall:   {promoted: promoted, gone: gone},
	where:    {promoted: promoted, gone: gone},
	opened:   {promoted: promoted, gone: gone},
	ended:    {promoted: over, gone: over},
}

// speakers lists the messages that only one side sends. FromClient is the side that opened the control connection.
var speakers = [kinds]negotiate.Speaker{
	offer: negotiate.FromClient, answer: negotiate.FromServer, confirm: negotiate.FromClient,
}

// Config configures a Control.
type Config struct {
	// Opener says whether this side opened the TCP connection. The opener is the client's side of the promoted
	// connections on it.
	Opener bool
	// Local and Remote are the ends of the TCP connection.
	Local, Remote netip.AddrPort
	// Hello is what this gateway says about itself. Without versions it gets those of this package.
	Hello Hello
	// Keys are shared with the peers.
	Keys negotiate.Keys
	// MaxConns bounds the connections, MaxOffers those that are not promoted yet.
	MaxConns, MaxOffers int
}

// Control is one end of a control connection. It is not safe for concurrent use.
type Control struct {
	cfg     Config
	version uint8
	greeted bool
	closed  bool
	todo    []Action

	in, out       []byte
	most          int           // connections since out was last empty
	key           []byte        // nil if messages have no MACs
	spoken, heard negotiate.MAC // MACs of the last message of either side
	first         negotiate.MAC // previous MAC of a DECLINE of everything from a peer that has not read this side's HELLO

	conns   map[uint64]*conn
	waiting map[uint64]*conn // the members of conns that are offered or answered
	next    time.Time        // none of waiting is due before; zero if none waits
	last    uint64           // number that was offered last

	silent     time.Time // since when nothing was heard or PING was sent
	stirred    time.Time // when a message was last sent or read
	pings      uint64
	unanswered int
}

// conn is the connection of one number.
type conn struct {
	number   uint64
	phase    phase
	until    time.Time                // when it stops waiting
	carriers []negotiate.CarrierOffer // of the last message that had any, until one of them carries
	said     words                    // by the local library
	told     words                    // by the peer's library
	asks     bool                     // WHERE was sent and is not answered
	again    bool                     // it is to be sent once more then
	asked    bool                     // WHERE was read and is not answered
	lost     bool                     // the peer's DECLINE was read: the next place of its library is the last
}

// words are the flags of a library. Once set, they stay set.
type words struct{ attached, recall bool }

// New returns a Control for an established control connection.
func New(cfg Config, now time.Time) *Control {
	if cfg.Hello.MaxVersion == 0 {
		cfg.Hello.MinVersion, cfg.Hello.MaxVersion = clc.MinVersion, clc.Version
	}
	c := &Control{
		cfg: cfg, version: cfg.Hello.MinVersion, key: cfg.Keys.First(), silent: now, stirred: now,
		conns: map[uint64]*conn{}, waiting: map[uint64]*conn{},
	}
	if cfg.Opener {
		c.send(now, &message{kind: hello, hello: cfg.Hello})
		c.heard = c.spoken
	}
	return c
}

// Pending returns the bytes to write next. They are valid until the next call.
func (c *Control) Pending() []byte { return c.out }

// Wrote says that the first n bytes of Pending were written.
func (c *Control) Wrote(n int) { c.out = c.out[min(n, len(c.out)):] }

// Deadline returns when Tick must be called, or zero if never.
func (c *Control) Deadline() time.Time {
	d := c.timer()
	if !c.next.IsZero() && c.next.Before(d) {
		return c.next
	}
	return d
}

// timer returns the deadline of the control connection itself.
func (c *Control) timer() time.Time {
	switch {
	case c.closed:
		return time.Time{}
	case !c.greeted:
		return c.silent.Add(helloTime)
	case len(c.conns) > 0:
		return c.silent.Add(silence)
	case c.cfg.Opener:
		return c.stirred.Add(idleTime)
	}
	return c.stirred.Add(patience)
}

// Tick acts on what is due.
func (c *Control) Tick(now time.Time) []Action {
	if !c.next.IsZero() && !now.Before(c.next) {
		c.expire(now)
	}
	if d := c.timer(); d.IsZero() || now.Before(d) {
		return c.done()
	}
	switch {
	case !c.greeted:
		c.fail(now, negotiate.ReasonHandshakeTimeout)
	case len(c.conns) == 0:
		c.end(negotiate.ReasonNone, false)
	case c.unanswered == maxPings:
		c.fail(now, negotiate.ReasonPeerDead)
	default:
		c.pings++
		c.unanswered++
		c.silent = now
		c.send(now, &message{kind: ping, number: c.pings})
	}
	return c.done()
}

// expire declines the numbers whose wait is over.
func (c *Control) expire(now time.Time) {
	c.next = time.Time{}
	for _, number := range slices.Sorted(maps.Keys(c.waiting)) {
		e := c.waiting[number]
		if e == nil { // an earlier one ended the control connection
			return
		}
		if now.Add(together).Before(e.until) {
			c.await(e.until)
			continue
		}
		why := negotiate.ReasonHandshakeTimeout
		switch {
		case e.phase == offered && !c.cfg.Opener:
			why = negotiate.ReasonNoPeer
		case e.phase == answered && c.cfg.Opener:
			why = negotiate.ReasonCarrierUnreachable
		}
		c.do(Lose{Number: number, Reason: why, Over: true})
		c.say(now, message{kind: decline, number: number, reason: why})
	}
}

// await makes expire run at t at the latest.
func (c *Control) await(t time.Time) {
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
}

// Broken says that the TCP connection has ended.
func (c *Control) Broken() []Action {
	c.end(negotiate.ReasonWireReset, true)
	return c.done()
}

// Close ends the control connection and tells the peer why.
func (c *Control) Close(now time.Time, why negotiate.Reason) []Action {
	c.fail(now, why)
	return c.done()
}

// Waiting returns how many connections are not promoted yet; there are never more than MaxOffers.
func (c *Control) Waiting() int { return len(c.waiting) }

// Offer (client) asks for the other end of a connection. It returns number 0 and sends nothing if the peer is not
// greeted yet, or if too many connections are waiting or promoted.
func (c *Control) Offer(now time.Time, o *Offer) (number uint64, todo []Action) {
	if c.closed || !c.greeted || !c.cfg.Opener || c.full() {
		return 0, nil
	}
	number = c.last + 1
	c.enter(now, number, answerTime).carriers = o.Carriers
	c.send(now, &message{kind: offer, number: number, offer: *o})
	return number, c.done()
}

// Answer (server) answers Find with the carriers that can be proved, at least one. The peer's next OFFER should have no
// larger order than order.
func (c *Control) Answer(now time.Time, number uint64, order uint8, carriers []negotiate.CarrierOffer) []Action {
	if e := c.say(now, message{kind: answer, number: number, offer: Offer{Order: order, Carriers: carriers}}); e != nil {
		e.carriers = carriers
		c.wait(e, now.Add(wordTime))
	}
	return c.done()
}

// Proved (client) answers Prove: the carrier of this kind works.
func (c *Control) Proved(now time.Time, number uint64, kind negotiate.CarrierKind) []Action {
	if e := c.say(now, message{kind: confirm, number: number, chosen: kind}); e != nil {
		c.do(Carry{Number: number, Carrier: kind})
	}
	return c.done()
}

// Decline says why there is no carrier, or no longer one. If there was one, call it when the mirror has GONE, and then
// Opened: a library that has seen GONE does not open its direction any more.
func (c *Control) Decline(now time.Time, number uint64, why negotiate.Reason) []Action {
	c.say(now, message{kind: decline, number: number, reason: why})
	return c.done()
}

// Attached says that the local library now reads by the rules of the ring.
func (c *Control) Attached(now time.Time, number uint64) []Action {
	if e := c.conns[number]; e != nil && !e.said.attached {
		e.said.attached = c.say(now, message{kind: attached, number: number}) != nil
	}
	return c.done()
}

// Recall says that the local library asks to receive through the kernel.
func (c *Control) Recall(now time.Time, number uint64) []Action {
	if e := c.conns[number]; e != nil && !e.said.recall {
		e.said.recall = c.say(now, message{kind: recall, number: number}) != nil
	}
	return c.done()
}

// Where asks for the place of the peer's library: at once, or when the question before it is answered.
func (c *Control) Where(now time.Time, number uint64) []Action {
	if e := c.conns[number]; e != nil {
		c.where(now, e)
	}
	return c.done()
}

func (c *Control) where(now time.Time, e *conn) {
	if e.again = e.asks; !e.asks {
		e.asks = c.say(now, message{kind: where, number: e.number}) != nil
	}
}

// Opened tells the place of the local library: in answer to Ask, and when the library has sent OPEN.
func (c *Control) Opened(now time.Time, number uint64, p Place) []Action {
	if e := c.say(now, message{kind: opened, number: number, place: p}); e != nil {
		e.asked = false
	}
	return c.done()
}

// Exited says that the local process has ended and how many bytes it had put into its ring. If the number is carried,
// the peer's memory has them. read is 1 more than the bytes that it had read; if it is 0 or impossible, nothing is said
// of them. It is the last call for the number, so answer Ask before it.
func (c *Control) Exited(now time.Time, number, written, read uint64) []Action {
	if read > math.MaxInt64 {
		read = 0
	}
	c.say(now, message{kind: ended, number: number, written: written, exited: true, read: read})
	return c.done()
}

// Left says that the local library has left the ring in both directions, and that the peer's memory has all the bytes
// it had written. It is the last call for the number.
func (c *Control) Left(now time.Time, number uint64) []Action {
	c.say(now, message{kind: ended, number: number})
	return c.done()
}

// say sends a message about a number if the number is known and its phase permits the message. It returns the
// connection, or nil if nothing was sent.
func (c *Control) say(now time.Time, m message) *conn {
	e := c.conns[m.number]
	if e == nil || moves[m.kind][e.phase] == none || !c.may(m.kind, c.cfg.Opener) {
		return nil
	}
	c.advance(e, m.kind)
	c.send(now, &m)
	if c.closed {
		return nil
	}
	return e
}

// may reports whether a side may send messages of kind k.
func (c *Control) may(k kind, opener bool) bool {
	return speakers[k] == 0 || speakers[k] == speaker(opener)
}

func speaker(opener bool) negotiate.Speaker {
	if opener {
		return negotiate.FromClient
	}
	return negotiate.FromServer
}

// full reports whether no connection can be added.
func (c *Control) full() bool {
	return len(c.conns) >= c.cfg.MaxConns || len(c.waiting) >= c.cfg.MaxOffers
}

// enter adds the connection of an OFFER.
func (c *Control) enter(now time.Time, number uint64, wait time.Duration) *conn {
	if len(c.conns) == 0 {
		c.silent, c.unanswered = now, 0
	}
	e := &conn{number: number, phase: offered}
	c.conns[number], c.last = e, number
	c.wait(e, now.Add(wait))
	return e
}

// wait sets the deadline of the current phase.
func (c *Control) wait(e *conn, until time.Time) {
	e.until, c.waiting[e.number] = until, e
	c.await(until)
}

// advance moves a connection to its next phase.
func (c *Control) advance(e *conn, k kind) {
	e.phase = moves[k][e.phase]
	if e.phase == over {
		delete(c.conns, e.number)
	}
	if e.phase != answered { // it no longer waits
		delete(c.waiting, e.number)
		e.carriers = nil
	}
	if len(c.waiting) == 0 {
		c.next = time.Time{}
	}
}

// send appends a message to the pending bytes.
func (c *Control) send(now time.Time, m *message) {
	if c.closed {
		return
	}
	start := len(c.out)
	if start == 0 {
		c.most = 0
	}
	c.most = max(c.most, len(c.conns))
	m.version, c.stirred = c.version, now
	c.out = m.append(c.out)
	if c.key != nil {
		c.out, c.spoken = negotiate.Seal(c.out, start, c.key, c.chain(c.cfg.Opener, c.spoken))
	}
	if len(c.out) > min(unsentOfNone+unsentOfEach*c.most, maxUnsent) {
		c.out = nil
		c.end(negotiate.ReasonStalled, false)
	}
}

// chain returns what the MAC of a side covers in addition to the message.
func (c *Control) chain(opener bool, prev negotiate.MAC) negotiate.Chain {
	b := negotiate.Binding{Client: c.cfg.Local, Server: c.cfg.Remote}
	if !c.cfg.Opener {
		b = negotiate.Binding{Client: c.cfg.Remote, Server: c.cfg.Local}
	}
	return negotiate.Chain{Binding: b, From: speaker(opener), Prev: prev}
}

// fail ends the control connection and tells the peer why.
func (c *Control) fail(now time.Time, why negotiate.Reason) {
	c.send(now, &message{kind: decline, reason: why})
	c.end(why, false)
}

// end ends the control connection and all its numbers.
func (c *Control) end(why negotiate.Reason, remote bool) {
	if c.closed {
		return
	}
	for _, number := range slices.Sorted(maps.Keys(c.conns)) {
		c.do(Lose{Number: number, Reason: why, Remote: remote, Over: true})
	}
	c.do(Closed{Reason: why, Remote: remote})
	c.closed, c.in, c.next = true, nil, time.Time{}
	clear(c.conns)
	clear(c.waiting)
}

func (c *Control) do(a Action) { c.todo = append(c.todo, a) }

// done returns the actions of the current call.
func (c *Control) done() []Action {
	todo := c.todo
	c.todo = nil
	return todo
}

// Receive processes bytes from the peer.
func (c *Control) Receive(now time.Time, b []byte) []Action {
	if c.closed {
		return nil
	}
	c.in = append(c.in, b...)
	for !c.closed {
		m, n, err := parse(c.in)
		if errors.Is(err, clc.ErrShort) {
			break
		}
		if err == nil {
			err = c.believe(&m, c.in[:n])
		}
		if err != nil {
			c.fail(now, negotiate.ReasonOf(err))
			break
		}
		c.in = c.in[n:]
		c.silent, c.stirred, c.unanswered = now, now, 0
		c.read(now, &m)
	}
	return c.done()
}

// believe checks the MAC of a message. A DECLINE of everything is obeyed even if it is not authentic, since its sender
// could as well have closed the connection, but its reason is replaced by ReasonAuthFailed.
func (c *Control) believe(m *message, msg []byte) (err error) {
	chain := c.chain(!c.cfg.Opener, c.heard)
	switch {
	case c.key == nil:
		_, _, err = negotiate.Keys(nil).Verify(msg, chain)
	case c.greeted || c.cfg.Opener:
		c.heard, err = negotiate.Verify(msg, c.key, chain)
	default: // the opener's first message selects the key
		var key []byte
		if key, c.heard, err = c.cfg.Keys.Verify(msg, chain); err == nil {
			c.key, c.spoken, c.first = key, c.heard, c.heard
		}
	}
	if err == nil || m.kind != decline || m.number != 0 {
		return err
	}
	chain.Prev = c.first
	if _, _, err = c.cfg.Keys.Verify(msg, chain); err != nil {
		m.reason = negotiate.ReasonAuthFailed
	}
	return nil
}

// read acts on a message.
func (c *Control) read(now time.Time, m *message) {
	whole := m.kind == decline && m.number == 0
	switch {
	case whole:
		c.end(m.reason, true)
	case m.kind == hello && !c.greeted:
		c.greet(now, m)
	case !c.greeted, m.kind == hello, m.version != c.version:
		c.fail(now, negotiate.ReasonProtocolError)
	case m.kind == ping:
		c.send(now, &message{kind: pong, number: m.number})
	case m.kind == pong:
		if m.number > c.pings {
			c.fail(now, negotiate.ReasonProtocolError)
		}
	case m.kind == offer:
		c.offered(now, m)
	default:
		c.about(now, m)
	}
}

// greet processes the peer's HELLO. In an answer, its version is the chosen one.
func (c *Control) greet(now time.Time, m *message) {
	ours, theirs := &c.cfg.Hello, &m.hello
	chosen := min(ours.MaxVersion, theirs.MaxVersion)
	if chosen < ours.MinVersion || chosen < theirs.MinVersion || c.cfg.Opener && chosen != m.version {
		c.fail(now, negotiate.ReasonVersion)
		return
	}
	c.version, c.greeted = chosen, true
	if c.cfg.Opener {
		c.spoken = c.heard
	} else {
		c.send(now, &message{kind: hello, hello: *ours})
		c.heard = c.spoken
	}
	c.do(Greeted{Peer: *theirs})
}

// offered processes an OFFER. Numbers count up, so that none is ever reused.
func (c *Control) offered(now time.Time, m *message) {
	if !c.may(offer, !c.cfg.Opener) || m.number != c.last+1 {
		c.fail(now, negotiate.ReasonProtocolError)
		return
	}
	c.last = m.number
	why := negotiate.ReasonFlowLimit
	switch {
	case len(m.offer.Carriers) == 0:
		why = negotiate.ReasonNoCommonCarrier
	case !c.full():
		c.enter(now, m.number, endTime)
		c.do(Find{Number: m.number, Offer: m.offer})
		return
	}
	c.send(now, &message{kind: decline, number: m.number, reason: why})
}

// about processes a message about a number.
func (c *Control) about(now time.Time, m *message) {
	e := c.conns[m.number]
	if e == nil && m.number <= c.last { // sent before the peer knew that the number is over
		return
	}
	if e == nil || moves[m.kind][e.phase] == none || !c.may(m.kind, !c.cfg.Opener) || !e.fits(m) {
		c.fail(now, negotiate.ReasonProtocolError)
		return
	}
	was := e.phase
	c.advance(e, m.kind)
	switch m.kind {
	case answer:
		e.carriers = m.offer.Carriers
		c.wait(e, now.Add(proveTime))
		c.do(Prove{Number: m.number, Carriers: m.offer.Carriers, Order: m.offer.Order})
	case confirm:
		c.do(Carry{Number: m.number, Carrier: m.chosen})
	case decline:
		e.lost = true
		if was != gone {
			c.do(Lose{Number: m.number, Reason: m.reason, Remote: true, Over: e.phase == over})
		}
	case attached:
		c.tell(e, words{attached: true, recall: e.told.recall})
	case recall:
		c.tell(e, words{attached: e.told.attached, recall: true})
	case where:
		if !e.asked {
			e.asked = true
			c.do(Ask{Number: m.number})
		}
	case opened:
		c.do(TellPlace{Number: m.number, Place: m.place, Latest: e.asks && !e.again, Last: e.lost})
		again := e.again && !m.place.Opened
		if e.asks, e.again = false, false; again {
			c.where(now, e)
		}
	case ended:
		c.do(PeerEnded{Number: m.number, Exited: m.exited, Written: m.written, Read: m.read})
	default:
	}
}

// fits reports whether the carriers of a message are among those offered before.
func (e *conn) fits(m *message) bool {
	switch m.kind {
	case answer:
		return !slices.ContainsFunc(m.offer.Carriers, func(o negotiate.CarrierOffer) bool {
			return !o.Answers(negotiate.FindCarrier(e.carriers, o.Kind))
		})
	case confirm:
		return negotiate.FindCarrier(e.carriers, m.chosen) != nil
	default:
		return true
	}
}

// tell passes on what the peer's library says while the number is promoted.
func (c *Control) tell(e *conn, w words) {
	if w != e.told && e.phase == promoted {
		c.do(Tell{Number: e.number, Attached: w.attached, Recall: w.recall})
	}
	e.told = w
}
