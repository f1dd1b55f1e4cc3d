package negotiate

import (
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// ClientConfig configures a client handshake.
type ClientConfig struct {
	// HandshakeTimeout is the part of the deadline that does not depend on the path; 0 means 200 ms.
	HandshakeTimeout time.Duration
	// Keys, if any, authenticate the messages of both sides. They require Binding and Proposal.Random.
	Keys Keys
	// Binding identifies the connection.
	Binding Binding
}

// Client is the client's side of one handshake, from the third ACK to CONFIRM or DECLINE.
//
//	        Start                ACCEPT                    accept() returned and a proof ended
//	idle ──────────► proposed ───────────► completing ─────────────────────────────────────────► carried
//	(PROPOSAL sent)   │    │ deadline, ▲   │ (SYN handed over,                    (CONFIRM sent)
//	                  │    │ Cancel    │   │  carriers being proved)
//	     DECLINE read,│    ▼           │   │ application gone, wire lost, garbage
//	        wire lost,│   asking ──────┘   │
//	          garbage │    │ DECLINE read, wire lost, garbage, no answer
//	                  ▼    ▼               ▼
//	                 released ◄────── before accept() returned ── after it ──► aborted
//
// Once PROPOSAL has left, the server may have dialled the application, which then has accepted a connection. So the
// client continues natively only if it knows that this has not happened, or that the server or the path to it is lost.
//
// A Client is not safe for concurrent use. Every input returns the actions to execute, in order. After each input the
// owner sets its timer to Deadline and calls Tick when it expires, after delivering the bytes that have arrived. Once
// the verdict is decided, inputs return nothing, except that bytes received on a carried connection come back as
// Records.
type Client struct {
	cfg      ClientConfig
	proposal Proposal

	state    clientState
	deadline time.Time // of the current state
	askEnd   time.Time // asking: when the client stops waiting for an answer
	why      Reason    // asking: the reason if no answer comes
	readEnd  time.Time // when ACCEPT counts as read at the latest, as the server reckons
	proofsBy time.Time // completing: when unfinished proofs are given up for the relay
	waitEnd  time.Time // completing: when the client stops waiting for accept()
	retry    time.Duration
	ends     Reason    // reason of a pending Cancel
	proofEnd time.Time // of the running proof; zero if none runs, as while the next queue pair is being connected
	rtt      time.Duration
	in       inbox
	auth     exchange

	accept   Accept
	proving  int // index into accept.Carriers
	proved   bool
	chosen   CarrierKind
	accepted bool          // accept() returned
	byPeer   bool          // Verdict.Shown
	waited   time.Duration // Verdict.Waited
	verdict  Verdict
}

type clientState uint8

const (
	clientIdle clientState = iota
	clientProposed
	clientAsking
	clientCompleting
	clientDone
)

// NewClient returns a client that will propose p. It fills in the versions of p, and Start fills in the budget.
func NewClient(cfg ClientConfig, p Proposal) *Client {
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	p.MinVersion, p.MaxVersion = MinVersion, Version
	return &Client{cfg: cfg, proposal: p, auth: newExchange(cfg.Keys, cfg.Binding, FromClient)}
}

// Deadline returns when Tick must be called, or zero if never.
func (c *Client) Deadline() time.Time {
	if !c.proofEnd.IsZero() && c.proofEnd.Before(c.deadline) {
		return c.proofEnd
	}
	return c.deadline
}

// Verdict returns the result, or false if there is none yet.
func (c *Client) Verdict() (Verdict, bool) {
	return c.verdict, c.verdict.Outcome != OutcomeNone
}

// Stage returns how far the handshake has got.
func (c *Client) Stage() Stage {
	switch c.state {
	case clientIdle:
		return StageAccepted
	case clientProposed, clientAsking:
		return StageNegotiating
	case clientCompleting:
		return StageCompleting
	case clientDone:
	}
	return StageOver
}

// Start begins the handshake on an established wire leg. synRTT is the round trip of SYN and SYN-ACK.
func (c *Client) Start(now time.Time, synRTT time.Duration) []Action {
	if c.state != clientIdle {
		return nil
	}
	c.rtt = synRTT
	c.proposal.Budget = budget(c.cfg.HandshakeTimeout, synRTT)
	c.deadline = now.Add(c.proposal.Budget)
	c.readEnd = c.deadline.Add(askTime)
	c.state = clientProposed
	return []Action{c.propose()}
}

// Receive processes bytes that arrived on the wire leg.
func (c *Client) Receive(now time.Time, b []byte) []Action {
	if c.verdict.Outcome == OutcomeCarried {
		return []Action{Records{Rest: b}}
	}
	if !c.awaitsAnswer() && c.state != clientCompleting {
		return nil
	}
	c.in.add(b)
	h, msg, err := c.in.next()
	switch {
	case errors.Is(err, ErrShort):
		return nil
	case errors.Is(err, clc.ErrEyecatcher) && c.awaitsAnswer():
		return c.shown(ReasonAcceptLost) // application data: the server takes this client for a native one
	case err != nil:
		return c.shown(ReasonOf(err))
	case h.Type == TypeDecline:
		return c.onDecline(msg)
	case h.Type == TypeAccept && c.awaitsAnswer():
		return c.onAccept(now, msg)
	}
	return c.shown(ReasonProtocolError)
}

// awaitsAnswer reports whether the server has sent neither ACCEPT nor DECLINE yet.
func (c *Client) awaitsAnswer() bool { return c.state == clientProposed || c.state == clientAsking }

// Proving says that the proof of a carrier has been sent. The proof's timeout starts here, because connecting the queue
// pair of an adapter can take as long as the whole proof may.
func (c *Client) Proving(now time.Time, kind CarrierKind) []Action {
	if c.awaits(kind) {
		c.proofEnd = now.Add(proofTimeout(c.cfg.HandshakeTimeout, c.rtt))
	}
	return nil
}

// awaits reports whether kind is the carrier whose proof is being waited for.
func (c *Client) awaits(kind CarrierKind) bool {
	return c.state == clientCompleting && !c.proved && c.accept.Carriers[c.proving].Kind == kind
}

// Proved takes the result of the proof of one carrier. It ignores results of proofs that are no longer awaited.
func (c *Client) Proved(_ time.Time, kind CarrierKind, ok bool) []Action {
	if !c.awaits(kind) {
		return nil
	}
	if ok {
		c.choose(kind)
		return c.confirm()
	}
	return c.nextProof()
}

// AppAccepted says that accept() has returned the app leg.
func (c *Client) AppAccepted(time.Time) []Action {
	if c.state != clientCompleting {
		return nil
	}
	c.accepted, c.deadline = true, c.proofsBy
	if c.ends != ReasonNone {
		return c.decline(c.ends)
	}
	return c.confirm()
}

// AppFailed says that the application has given up connecting, or that the app leg ended before CONFIRM.
func (c *Client) AppFailed(time.Time) []Action {
	if c.state != clientCompleting {
		return nil
	}
	return c.decline(ReasonClientGone)
}

// WireLost says that the wire leg has ended: reset, closed by the peer, or timed out. The peer may have ended it
// because this host was silent.
func (c *Client) WireLost(time.Time) []Action {
	if c.state == clientDone {
		return nil
	}
	c.waited = askTime
	return c.end(ReasonWireReset, true)
}

// WireFailed says that the wire leg cannot send, a local condition of this host.
func (c *Client) WireFailed(time.Time) []Action {
	if c.state == clientDone {
		return nil
	}
	return c.end(ReasonWireReset, false)
}

// Cancel ends the handshake for a local reason, such as drained or off. If the server may have dialled the application,
// the server's answer decides: a connection that the application has accepted there is handed to the application here,
// and then aborted.
//
// A client that has nothing to offer calls Cancel instead of Start. It then sends a PROPOSAL without carriers and a
// DECLINE in one segment. Where a box removes the option from data segments, the server could mistake a DECLINE alone
// for the bytes of a native client.
func (c *Client) Cancel(now time.Time, r Reason) []Action {
	switch c.state {
	case clientDone:
	case clientIdle:
		c.proposal.Carriers = nil
		c.byPeer = r == ReasonNoCommonCarrier // the peer has shown it before
		no := Send{Bytes: append(c.propose().Bytes, c.auth.decline(r)...)}
		return append([]Action{no}, c.end(r, false)...)
	case clientProposed:
		c.ends = r
		return c.ask(now, r)
	case clientAsking:
		c.ends = r
	case clientCompleting:
		if c.accepted {
			return c.decline(r)
		}
		c.hurry(now, r)
	}
	return nil
}

// hurry limits how long a cancelled handshake waits for accept() to the time that accept() normally takes.
func (c *Client) hurry(now time.Time, r Reason) {
	c.ends = r
	if soon := now.Add(completingTime(c.cfg.HandshakeTimeout)); soon.Before(c.waitEnd) {
		c.waitEnd = soon
	}
	if c.waitEnd.Before(c.deadline) {
		c.deadline = c.waitEnd
	}
}

// Tick acts on an expired deadline.
func (c *Client) Tick(now time.Time) []Action {
	switch {
	case c.state == clientDone || c.state == clientIdle:
		return nil
	case !now.Before(c.deadline):
		return c.expired(now)
	case !c.proofEnd.IsZero() && !now.Before(c.proofEnd):
		return c.nextProof()
	}
	return nil
}

// expired acts on the deadline of the state: without an answer the client asks for it, without accept() it hands the
// application over again, and for an unfinished proof it chooses the relay.
func (c *Client) expired(now time.Time) []Action {
	switch {
	case c.state == clientProposed:
		return c.ask(now, ReasonHandshakeTimeout)
	case c.state == clientAsking && now.Before(c.askEnd):
		return c.askAgain(now)
	case c.state == clientAsking && c.why == ReasonHandshakeTimeout:
		c.waited = c.proposal.Budget + askTime
		return c.decline(c.why)
	case c.state == clientAsking:
		return c.decline(c.why)
	case !c.accepted && now.Before(c.waitEnd):
		c.retry = min(c.retry+c.retry/2, maxHandOver)
		c.deadline = earlier(now.Add(c.retry), c.waitEnd)
		return []Action{HandOverAgain{}}
	case !c.accepted && c.ends != ReasonNone:
		return c.decline(c.ends)
	case !c.accepted:
		return c.decline(ReasonClientGone)
	}
	c.choose(CarrierRelay)
	return c.confirm()
}

// ask begins to ask for the answer. why becomes the reason if none comes.
func (c *Client) ask(now time.Time, why Reason) []Action {
	c.state, c.why = clientAsking, why
	c.askEnd = now.Add(askTime)
	if why != ReasonHandshakeTimeout { // the answer is not late yet
		c.askEnd = c.deadline.Add(askTime)
	}
	return c.askAgain(now)
}

func (c *Client) askAgain(now time.Time) []Action {
	c.deadline = earlier(now.Add(askInterval), c.askEnd)
	return []Action{Send{Bytes: c.auth.ask()}}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (c *Client) onDecline(msg []byte) []Action {
	r, err := c.auth.readDecline(msg)
	switch {
	case err != nil:
		return c.shown(ReasonOf(err))
	case c.ends != ReasonNone:
		return c.end(c.ends, false)
	}
	return c.end(r, true)
}

func (c *Client) onAccept(now time.Time, msg []byte) []Action {
	if err := c.readAccept(msg); err != nil {
		return c.shown(ReasonOf(err))
	}
	c.in.take(len(msg))
	if len(c.in.buf) > 0 { // the server sends nothing else before the client's last word
		return c.shown(ReasonProtocolError)
	}
	c.state = clientCompleting
	read := earlier(now, c.readEnd) // reading ACCEPT late does not move the server's deadline
	c.retry = completingTime(c.cfg.HandshakeTimeout)
	c.proofsBy, c.waitEnd = read.Add(c.retry), read.Add(appWaitTimeout)
	c.deadline = c.proofsBy
	if c.ends != ReasonNone {
		c.hurry(now, c.ends)
	}
	return []Action{HandOver{Accept: &c.accept}, c.prove()}
}

func (c *Client) readAccept(msg []byte) error {
	a, _, err := ParseAccept(msg)
	if err != nil {
		return err
	}
	if a.Version < c.proposal.MinVersion || a.Version > c.proposal.MaxVersion {
		return fmt.Errorf("clc accept of version %d: %w", a.Version, ErrMalformed)
	}
	for i := range a.Carriers {
		if !a.Carriers[i].Answers(FindCarrier(c.proposal.Carriers, a.Carriers[i].Kind)) {
			return fmt.Errorf("carrier %s not offered: %w", a.Carriers[i].Kind, ErrMalformed)
		}
	}
	if err := c.auth.verify(msg); err != nil {
		return err
	}
	c.accept = a
	return nil
}

func (c *Client) prove() Action {
	c.proofEnd = time.Time{}
	return Prove{Offer: c.accept.Carriers[c.proving], Timeout: proofTimeout(c.cfg.HandshakeTimeout, c.rtt)}
}

// nextProof starts the proof of the next carrier, or chooses the relay after the last one.
func (c *Client) nextProof() []Action {
	if c.proving+1 < len(c.accept.Carriers) {
		c.proving++
		return []Action{c.prove()}
	}
	c.choose(CarrierRelay)
	return c.confirm()
}

func (c *Client) choose(k CarrierKind) {
	c.proved, c.chosen, c.proofEnd = true, k, time.Time{}
}

// confirm sends the last word once both local steps are done. No bytes can be left in the inbox here: Receive declines
// if the server sends any before CONFIRM.
func (c *Client) confirm() []Action {
	if !c.accepted || !c.proved {
		return nil
	}
	c.finish(Verdict{Outcome: OutcomeCarried, Carrier: c.chosen})
	if c.chosen == CarrierRelay {
		c.verdict.Reason, c.verdict.Waited = ReasonCarrierUnreachable, proofTimeout(c.cfg.HandshakeTimeout, c.rtt)
	}
	msg := c.auth.seal(AppendConfirm(nil, Confirm{Version: c.accept.Version, Carrier: c.chosen}))
	return []Action{Send{Bytes: msg}, Carry{Carrier: c.chosen}, Records{Rest: c.in.rest()}}
}

// shown declines because of something the server has sent.
func (c *Client) shown(r Reason) []Action {
	c.byPeer = true
	return c.decline(r)
}

// decline declines for a local reason.
func (c *Client) decline(r Reason) []Action {
	no := Send{Bytes: c.auth.decline(r)}
	return append([]Action{no}, c.end(r, false)...)
}

// end releases the connection, or aborts it if the gateway has already completed the application's connect().
func (c *Client) end(r Reason, remote bool) []Action {
	if c.accepted {
		c.finish(Verdict{Outcome: OutcomeAborted, Reason: r, Remote: remote, Shown: c.byPeer, Waited: c.waited})
		return []Action{Abort{Verdict: c.verdict}}
	}
	c.finish(Verdict{Outcome: OutcomeReleased, Reason: r, Remote: remote, Shown: c.byPeer, Waited: c.waited})
	return []Action{Release{Verdict: c.verdict}}
}

func (c *Client) finish(v Verdict) {
	c.state, c.verdict = clientDone, v
	c.deadline, c.proofEnd = time.Time{}, time.Time{}
}

func (c *Client) propose() Send {
	return Send{Bytes: c.auth.sealProposal(AppendProposal(nil, &c.proposal))}
}
