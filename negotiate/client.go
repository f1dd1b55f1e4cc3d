package negotiate

import (
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// ClientConfig is what a client handshake needs to know besides its Proposal.
type ClientConfig struct {
	// HandshakeTimeout is the part of the deadline that does not depend on the path; 0 means 200 ms.
	HandshakeTimeout time.Duration
	// Keys, when there are any, authenticate the messages of both sides. They need Binding and Proposal.Random.
	Keys Keys
	// Binding names the connection.
	Binding Binding
}

// Client is the client's side of one handshake, from the third ACK to CONFIRM or DECLINE.
//
//	        Start                ACCEPT                    accept() returned and a proof ended
//	idle ──────────► proposed ───────────► completing ─────────────────────────────────────────► carried
//	(PROPOSAL sent)     │                  │ (SYN handed over,                    (CONFIRM sent)
//	                    │                  │  carriers being proved)
//	   DECLINE read, deadline,             │ accept() failed or late, wire lost,
//	   wire lost, garbage, Cancel          │ garbage, Cancel
//	                    ▼                  ▼
//	                 released ◄────── before accept() returned ── after it ──► aborted
//
// It is not safe for concurrent use. Every input returns the actions to execute, in order; after each input the owner
// arms its timer at Deadline and calls Tick when that has come; bytes that have arrived are delivered before Tick. Once
// Verdict is decided every further input returns nothing, except that bytes received when carried come back as Records.
type Client struct {
	cfg      ClientConfig
	proposal Proposal

	state    clientState
	deadline time.Time // of the state
	waitEnd  time.Time // until when AppWaits puts that off
	proofEnd time.Time // of the running proof, zero when none runs: the queue pair of the next may not be connected yet
	rtt      time.Duration
	in       inbox
	auth     exchange

	accept   Accept
	proving  int // index into accept.Carriers
	proved   bool
	chosen   CarrierKind
	accepted bool // accept() returned
	verdict  Verdict
}

type clientState uint8

const (
	clientIdle clientState = iota
	clientProposed
	clientCompleting
	clientDone
)

// NewClient returns a client that will propose p; Budget and versions of p are filled in by the machine.
func NewClient(cfg ClientConfig, p Proposal) *Client {
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = defaultHandshakeTimeout
	}
	p.MinVersion, p.MaxVersion = MinVersion, Version
	return &Client{cfg: cfg, proposal: p, auth: newExchange(cfg.Keys, cfg.Binding, FromClient)}
}

// Deadline returns when Tick wants to be called, zero for never.
func (c *Client) Deadline() time.Time {
	if !c.proofEnd.IsZero() && c.proofEnd.Before(c.deadline) {
		return c.proofEnd
	}
	return c.deadline
}

// Verdict returns the result; false while there is none.
func (c *Client) Verdict() (Verdict, bool) {
	return c.verdict, c.verdict.Outcome != OutcomeNone
}

// State returns the state's name in the words of the flow's states.
func (c *Client) State() string {
	switch c.state {
	case clientIdle:
		return "accepted"
	case clientProposed:
		return "negotiating"
	case clientCompleting:
		return "completing"
	case clientDone:
	}
	return c.verdict.Outcome.String()
}

// Start begins the handshake: the wire leg is established, synRTT is the round trip of SYN and SYN-ACK.
func (c *Client) Start(now time.Time, synRTT time.Duration) []Action {
	if c.state != clientIdle {
		return nil
	}
	c.rtt = synRTT
	c.proposal.Budget = budget(c.cfg.HandshakeTimeout, synRTT)
	c.deadline = now.Add(c.proposal.Budget)
	c.state = clientProposed
	return []Action{c.propose()}
}

// Receive takes bytes of the wire leg.
func (c *Client) Receive(now time.Time, b []byte) []Action {
	if c.verdict.Outcome == OutcomeCarried {
		return []Action{Records{Rest: b}}
	}
	if c.state != clientProposed && c.state != clientCompleting {
		return nil
	}
	c.in.add(b)
	h, msg, err := c.in.next()
	switch {
	case errors.Is(err, ErrShort):
		return nil
	case errors.Is(err, clc.ErrEyecatcher) && c.state == clientProposed:
		return c.decline(ReasonAcceptLost) // the application's own bytes: the server takes us for a native client
	case err != nil:
		return c.decline(ReasonOf(err))
	case h.Type == TypeDecline:
		return c.onDecline(msg)
	case h.Type == TypeAccept && c.state == clientProposed:
		return c.onAccept(now, msg)
	}
	return c.decline(ReasonProtocolError)
}

// Proving says that the proof of one carrier has been sent: its queue pair is connected, which can take an adapter as long
// as a proof may.
func (c *Client) Proving(now time.Time, kind CarrierKind) []Action {
	if c.awaits(kind) {
		c.proofEnd = now.Add(proofTimeout(c.cfg.HandshakeTimeout, c.rtt))
	}
	return nil
}

// awaits reports whether the proof of a carrier is the one that counts.
func (c *Client) awaits(kind CarrierKind) bool {
	return c.state == clientCompleting && !c.proved && c.accept.Carriers[c.proving].Kind == kind
}

// Proved takes the result of the proof of one carrier. Results of proofs that are no longer awaited are ignored.
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

// AppAccepted says that accept() returned the application's leg.
func (c *Client) AppAccepted(time.Time) []Action {
	if c.state != clientCompleting {
		return nil
	}
	c.accepted = true
	return c.confirm()
}

// AwaitsApp reports whether the time for accept() is over.
func (c *Client) AwaitsApp(now time.Time) bool {
	return c.state == clientCompleting && !c.accepted && !now.Before(c.deadline)
}

// AppWaits says that the application's connect() has returned although accept() has not: the last ACK between them is
// on its way, or was lost. The connection cannot fall back any more, so the client waits as long as the server does.
func (c *Client) AppWaits(now time.Time) []Action {
	if c.AwaitsApp(now) && now.Before(c.waitEnd) {
		c.deadline = now.Add(completingTime(c.cfg.HandshakeTimeout))
		if c.deadline.After(c.waitEnd) {
			c.deadline = c.waitEnd
		}
	}
	return nil
}

// AppFailed says that the application's leg cannot be had (the application gave up while connecting), or that it ended
// before CONFIRM.
func (c *Client) AppFailed(time.Time) []Action {
	if c.state != clientCompleting {
		return nil
	}
	return c.decline(ReasonClientGone)
}

// WireLost says that the wire leg ended: reset, closed by the peer, or timed out.
func (c *Client) WireLost(time.Time) []Action {
	if c.state == clientDone {
		return nil
	}
	return c.end(ReasonWireReset, true)
}

// Cancel ends the handshake for a local reason: drained, off, the application's SYN was replaced. Instead of Start it is
// for clients that have nothing to offer: they say so by a PROPOSAL without carriers and a DECLINE in one piece. A DECLINE
// alone could be mistaken for the bytes of a native client, where a box takes our option off data segments.
func (c *Client) Cancel(_ time.Time, r Reason) []Action {
	switch c.state {
	case clientDone:
		return nil
	case clientIdle:
		c.proposal.Carriers = nil
		no := Send{Bytes: append(c.propose().Bytes, c.auth.decline(r)...)}
		return append([]Action{no}, c.end(r, false)...)
	case clientProposed, clientCompleting:
	}
	return c.decline(r)
}

// Tick acts on deadlines that have come.
func (c *Client) Tick(now time.Time) []Action {
	switch {
	case c.state == clientDone || c.state == clientIdle:
		return nil
	case !now.Before(c.deadline):
		return c.expired()
	case !c.proofEnd.IsZero() && !now.Before(c.proofEnd):
		return c.nextProof()
	}
	return nil
}

// expired: only a missing accept() may decline after ACCEPT; an unfinished proof means relay.
func (c *Client) expired() []Action {
	switch {
	case c.state == clientProposed:
		return c.decline(ReasonHandshakeTimeout)
	case !c.accepted:
		return c.decline(ReasonClientGone)
	}
	c.choose(CarrierRelay)
	return c.confirm()
}

func (c *Client) onDecline(msg []byte) []Action {
	r, err := c.auth.readDecline(msg)
	if err != nil {
		return c.decline(ReasonOf(err))
	}
	return c.end(r, true)
}

func (c *Client) onAccept(now time.Time, msg []byte) []Action {
	if err := c.readAccept(msg); err != nil {
		return c.decline(ReasonOf(err))
	}
	c.in.take(len(msg))
	if len(c.in.buf) > 0 { // the server sends nothing more before our last word
		return c.decline(ReasonProtocolError)
	}
	c.state = clientCompleting
	read := now
	if read.After(c.deadline) { // late: the server counts from the end of the budget all the same
		read = c.deadline
	}
	c.deadline, c.waitEnd = read.Add(completingTime(c.cfg.HandshakeTimeout)), read.Add(appWaitTimeout)
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
		if !a.Carriers[i].answers(FindCarrier(c.proposal.Carriers, a.Carriers[i].Kind)) {
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

// nextProof tries the next carrier, and after the last one settles for the relay.
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

// confirm says the last word once both local steps are done. The peer cannot have sent anything: Receive would have
// declined.
func (c *Client) confirm() []Action {
	if !c.accepted || !c.proved {
		return nil
	}
	c.finish(Verdict{Outcome: OutcomeCarried, Carrier: c.chosen})
	if c.chosen == CarrierRelay {
		c.verdict.Reason = ReasonCarrierUnreachable
	}
	msg := c.auth.seal(AppendConfirm(nil, Confirm{Version: c.accept.Version, Carrier: c.chosen}))
	return []Action{Send{Bytes: msg}, Carry{Carrier: c.chosen}, Records{Rest: c.in.rest()}}
}

// decline says no for a reason of ours.
func (c *Client) decline(r Reason) []Action {
	no := Send{Bytes: c.auth.decline(r)}
	return append([]Action{no}, c.end(r, false)...)
}

// end gives the connection back, or ends it when the application already has it from us.
func (c *Client) end(r Reason, remote bool) []Action {
	if c.accepted {
		c.finish(Verdict{Outcome: OutcomeAborted, Reason: r, Remote: remote})
		return []Action{Abort{Verdict: c.verdict}}
	}
	c.finish(Verdict{Outcome: OutcomeReleased, Reason: r, Remote: remote})
	return []Action{Release{Verdict: c.verdict}}
}

func (c *Client) finish(v Verdict) {
	c.state, c.verdict = clientDone, v
	c.deadline, c.proofEnd = time.Time{}, time.Time{}
}

func (c *Client) propose() Send {
	return Send{Bytes: c.auth.sealProposal(AppendProposal(nil, &c.proposal))}
}
