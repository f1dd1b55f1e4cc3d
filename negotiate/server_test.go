package negotiate

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testNonce = 0xbeef

func waiting(c Confirmed) *Server {
	s := NewServer(ServerConfig{}, testNonce)
	s.Start(t0, testRTT, c)
	return s
}

func serving(t *testing.T) *Server {
	s := waiting(ConfirmedYes)
	todo := s.Receive(t0, vector(t, "proposal"))
	require.Len(t, todo, 1)
	p := goldenProposal(t)
	require.Equal(t, Serve{Proposal: &p}, todo[0])
	return s
}

func accepted(t *testing.T) *Server {
	s := serving(t)
	require.Equal(t, []Action{Send{Bytes: vector(t, "accept")}}, served(s, t0, goldenAccept(t)))
	return s
}

// served answers Serve and Dial at once.
func served(s *Server, now time.Time, a Accept) []Action {
	todo := s.Reserved(now, a)
	if len(todo) == 1 && todo[0] == (Dial{}) {
		return s.Dialled(now, true, ReasonNone)
	}
	return todo
}

// dialling returns a server whose dial is under way.
func dialling(t *testing.T) *Server {
	s := serving(t)
	require.Equal(t, []Action{Dial{}}, s.Reserved(t0, goldenAccept(t)))
	return s
}

func confirmBytes(k CarrierKind) []byte { return AppendConfirm(nil, Confirm{Version: 1, Carrier: k}) }

func declineActions(r Reason) []Action {
	return []Action{Send{Bytes: encodeDecline(Decline{Version: 1, Reason: r})}, Drop{}}
}

func aborted(r Reason, remote, silent bool) []Action {
	return []Action{Abort{Verdict{Outcome: OutcomeAborted, Reason: r, Remote: remote, Shown: r == ReasonAcceptLost}, silent}}
}

func TestServerCarries(t *testing.T) {
	s := accepted(t)
	require.Equal(t, StageCompleting, s.Stage())
	require.Equal(t, at(204*time.Millisecond+askTime+completingTimeout+2*testRTT+lastWordSlack), s.Deadline())
	require.Equal(t, []Action{Carry{CarrierSHM}, Records{Rest: []byte("rest")}},
		s.Receive(t0, append(confirmBytes(CarrierSHM), "rest"...)))
	require.Equal(t, OutcomeCarried, s.verdict.Outcome)
	require.False(t, s.Reading())
	require.True(t, s.Deadline().IsZero())
	require.Equal(t, []Action{Records{Rest: []byte("more")}}, s.Receive(t0, []byte("more")))
	require.Nil(t, s.Released(t0), "a blind SYN kills nothing")
	require.Nil(t, s.Cancel(t0, ReasonDrained))
	require.Nil(t, s.EOF(t0))

	// The last word may come as late as a path can be that is not given up.
	s = accepted(t)
	late := s.Deadline().Add(-1)
	require.Nil(t, s.Tick(late))
	require.Equal(t, Carry{CarrierSHM}, s.Receive(late, confirmBytes(CarrierSHM))[0])
}

func TestServerRelayFromTheStart(t *testing.T) {
	s := accepted(t)
	require.Len(t, s.Receive(t0, confirmBytes(CarrierRelay)), 2)
	v, _ := s.Verdict()
	require.Equal(t, Verdict{Outcome: OutcomeCarried, Carrier: CarrierRelay, Reason: ReasonCarrierUnreachable, Remote: true}, v)
}

func TestServerDataCountsAsConfirm(t *testing.T) {
	s := accepted(t)
	require.Nil(t, s.PeerData(t0, CarrierSoft), "not accepted")
	require.Equal(t, []Action{Carry{CarrierSHM}}, s.PeerData(t0, CarrierSHM))
	require.True(t, s.Reading())
	require.Nil(t, s.PeerData(t0, CarrierSHM))
	msg := append(confirmBytes(CarrierSHM), "rest"...)
	require.Nil(t, s.Receive(t0, msg[:5]))
	require.Equal(t, []Action{Records{Rest: []byte("rest")}}, s.Receive(t0, msg[5:]))
	require.False(t, s.Reading())

	for name, input := range map[string]func(s *Server) []Action{
		"other carrier": func(s *Server) []Action { return s.Receive(t0, confirmBytes(CarrierRelay)) },
		"decline":       func(s *Server) []Action { return s.Receive(t0, vector(t, "decline")) },
	} {
		s = accepted(t)
		s.PeerData(t0, CarrierSHM)
		require.Equal(t, aborted(ReasonProtocolError, true, false), input(s), name)
	}
	s = accepted(t)
	s.PeerData(t0, CarrierSHM)
	require.Equal(t, aborted(ReasonWireReset, true, false), s.EOF(t0))
}

func TestServerDeclines(t *testing.T) {
	s := serving(t)
	require.Equal(t, declineActions(ReasonAppRefused), s.Refused(t0, ReasonAppRefused))
	declined := Verdict{Outcome: OutcomeDeclined, Reason: ReasonAppRefused}
	require.Nil(t, served(s, t0, goldenAccept(t)), "too late")
	require.Nil(t, s.Receive(t0, []byte("ignored")))
	require.Equal(t, []Action{Abort{declined, true}}, s.WireLost(t0))

	s = serving(t)
	s.Refused(t0, ReasonAppRefused)
	require.Equal(t, []Action{Abort{declined, true}}, s.Released(t0))

	s = serving(t)
	s.Refused(t0, ReasonAppRefused)
	require.Equal(t, []Action{Abort{declined, false}}, s.Tick(s.Deadline()), "the client does not go")

	s = serving(t)
	require.Equal(t, at(158500*time.Microsecond), s.Deadline())
	require.Equal(t, declineActions(ReasonHandshakeTimeout), s.Tick(s.Deadline()), "nothing is dialled any more")
	require.Nil(t, s.Reserved(at(time.Second), goldenAccept(t)))

	s = serving(t)
	require.Equal(t, declineActions(ReasonHandshakeTimeout), s.Reserved(s.Deadline(), goldenAccept(t)), "too late for a dial")

	s = NewServer(ServerConfig{}, testNonce)
	s.Start(t0, testRTT, ConfirmedYes)
	require.Equal(t, declineActions(ReasonHandshakeTimeout), s.Receive(at(158500*time.Microsecond), vector(t, "proposal")), "it has waited for us")

	require.Equal(t, declineActions(ReasonAppRefused), dialling(t).Dialled(t0, false, ReasonAppRefused))

	s = serving(t)
	a := goldenAccept(t)
	a.Carriers = []CarrierOffer{hwOffer(t)}
	require.Equal(t, declineActions(ReasonNoCommonCarrier), served(s, t0, a))

	require.Equal(t, declineActions(ReasonDrained), serving(t).Cancel(t0, ReasonDrained))
	require.Equal(t, declineActions(ReasonProtocolError), serving(t).Receive(t0, confirmBytes(CarrierSHM)))
	require.Equal(t, declineActions(ReasonDrained), waiting(ConfirmedYes).Cancel(t0, ReasonDrained))
}

func TestServerRefusesProposal(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(p *Proposal)
		want  Reason
	}{
		"nonce":    {func(p *Proposal) { p.Nonce++ }, ReasonProtocolError},
		"version":  {func(p *Proposal) { p.MinVersion, p.MaxVersion = 2, 9 }, ReasonVersion},
		"older":    {func(p *Proposal) { p.MinVersion, p.MaxVersion = 0, 0 }, ReasonVersion},
		"carriers": {func(p *Proposal) { p.Carriers = nil }, ReasonNoCommonCarrier},
	} {
		p := goldenProposal(t)
		c.spoil(&p)
		require.Equal(t, declineActions(c.want), waiting(ConfirmedYes).Receive(t0, AppendProposal(nil, &p)), name)
	}
	critical := withTLV(vector(t, "proposal"), 0x8077, nil)
	require.Equal(t, declineActions(ReasonVersion), waiting(ConfirmedYes).Receive(t0, critical))

	s := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	s.Start(t0, testRTT, ConfirmedYes)
	no, _ := Seal(encodeDecline(Decline{Version: 1, Reason: ReasonAuthFailed}), 0, testKey,
		Chain{Binding: testBinding, From: FromServer})
	require.Equal(t, []Action{Send{Bytes: no}, Drop{}}, s.Receive(t0, vector(t, "proposal")))
	_, sealed := proposed(t, ClientConfig{Keys: Keys{testKey}})
	require.Equal(t, declineActions(ReasonAuthFailed), waiting(ConfirmedYes).Receive(t0, sealed), "an unexpected mac")

	require.Equal(t, aborted(ReasonProtocolError, true, false), waiting(ConfirmedYes).Receive(t0, []byte("GET /")))
}

func TestServerNewerClient(t *testing.T) {
	p := goldenProposal(t)
	p.MaxVersion = 7
	s := waiting(ConfirmedYes)
	require.Len(t, s.Receive(t0, AppendProposal(nil, &p)), 1)
	require.Equal(t, []Action{Send{Bytes: vector(t, "accept")}}, served(s, t0, goldenAccept(t)))
}

func TestServerClientGivesUp(t *testing.T) {
	gone := []Action{Abort{Verdict{Outcome: OutcomeDeclined, Reason: ReasonAppRefused, Remote: true}, true}}
	require.Equal(t, gone, serving(t).Receive(t0, vector(t, "decline")))
	require.Equal(t, gone, accepted(t).Receive(t0, vector(t, "decline")))

	todo := waiting(ConfirmedYes).Receive(t0, append(vector(t, "proposal"), vector(t, "decline")...))
	require.Len(t, todo, 2)
	require.Equal(t, gone, todo[1:], "both in one piece")

	released := []Action{Abort{Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true}}
	require.Equal(t, released, waiting(ConfirmedYes).Released(t0))
	require.Equal(t, released, accepted(t).Released(t0))
	require.Equal(t, aborted(ReasonClientGone, true, true), accepted(t).WireLost(t0))
	require.Equal(t, aborted(ReasonClientGone, true, false), accepted(t).EOF(t0))
	s := accepted(t)
	require.Equal(t, aborted(ReasonClientGone, true, false), s.Tick(s.Deadline()), "no last word")
}

// A RST before anything was read would be ECONNREFUSED for the application after a dead gateway.
func TestServerNeverResetsUnheard(t *testing.T) {
	s := waiting(ConfirmedYes)
	require.Equal(t, at(240*time.Millisecond), s.Deadline())
	require.Equal(t, aborted(ReasonClientGone, true, true), s.Tick(s.Deadline()))
	require.Equal(t, aborted(ReasonClientGone, true, true), waiting(ConfirmedYes).EOF(t0))
	require.Equal(t, aborted(ReasonDrained, false, true), waiting(ConfirmedUnknown).Cancel(t0, ReasonDrained))
}

func TestServerBadConfirm(t *testing.T) {
	for name, msg := range map[string][]byte{
		"not accepted": confirmBytes(CarrierSoft),
		"version":      AppendConfirm(nil, Confirm{Version: 2, Carrier: CarrierSHM}),
		"no clc":       []byte("x"),
		"proposal":     vector(t, "proposal"),
	} {
		require.Equal(t, aborted(ReasonProtocolError, true, false), accepted(t).Receive(t0, msg), name)
	}
}

func TestServerRaw(t *testing.T) {
	s := NewServer(ServerConfig{}, testNonce)
	require.Nil(t, s.Start(t0, testRTT, ConfirmedNo))
	require.Equal(t, []Action{DialRaw{}}, s.Tick(t0), "nothing came with it")
	require.Nil(t, s.Receive(t0, []byte("SM")))
	require.Equal(t, []Action{RelayRaw{}}, s.RawDialled(t0, true, 0), "the application may speak first")
	require.True(t, s.Reading())
	require.Equal(t, []Action{Forward{Bytes: []byte("SMTP"), Last: true}}, s.Receive(t0, []byte("TP")))
	require.False(t, s.Reading())
	require.Equal(t, []Action{Forward{Bytes: []byte("x"), Last: true}}, s.Receive(t0, []byte("x")))
	v, _ := s.Verdict()
	require.Equal(t, Verdict{Outcome: OutcomeRaw, Reason: ReasonAcceptLost}, v)
	require.Nil(t, s.Released(t0))
}

func TestServerRawHoldsUntilDialled(t *testing.T) {
	s := waiting(ConfirmedNo)
	require.Equal(t, []Action{DialRaw{}}, s.Receive(t0, []byte("GET /")))
	require.False(t, s.Reading())
	require.Equal(t, []Action{RelayRaw{}, Forward{Bytes: []byte("GET /"), Last: true}}, s.RawDialled(t0, true, 0))

	s = raw(t)
	require.Equal(t, aborted(ReasonAppRefused, false, false), s.RawDialled(t0, false, ReasonAppRefused))
}

// A client whose first segments were all lost, and that sends its SYN again, does not
// wait for the answer of a relay that waits for its bytes.
func TestServerRawIsNotWhatTheClientWaitsFor(t *testing.T) {
	unheard := []Action{Abort{Verdict{Outcome: OutcomeDeclined, Reason: ReasonClientGone, Remote: true}, true}}
	for _, dialled := range []bool{false, true} {
		raw := func(s *Server) *Server {
			require.IsType(t, DialRaw{}, s.Tick(s.Deadline())[0])
			if dialled {
				require.Equal(t, []Action{RelayRaw{}}, s.RawDialled(t0, true, 0))
			}
			return s
		}
		s := raw(waiting(ConfirmedUnknown))
		require.True(t, s.Mute())
		require.Equal(t, unheard, s.Released(t0))
		require.Nil(t, s.Released(t0))

		s = raw(waiting(ConfirmedUnknown))
		s.Receive(t0, []byte("S"))
		require.Nil(t, s.Released(t0), "an old SYN of a client that is connected")
	}
	require.Nil(t, raw(t).Released(t0), "its kernel has answered our SYN-ACK")
}

func TestServerRawGuard(t *testing.T) {
	for _, dialled := range []bool{false, true} {
		s := raw(t)
		if dialled {
			s.RawDialled(t0, true, 0)
		}
		b := vector(t, "proposal")
		for i := range guardLen - 1 {
			require.Nil(t, s.Receive(t0, b[i:i+1]))
		}
		require.Equal(t, aborted(ReasonAcceptLost, false, false), s.Receive(t0, b[guardLen-1:]))
	}
	s := raw(t)
	s.RawDialled(t0, true, 0)
	require.Nil(t, s.Receive(t0, []byte("SMGW")))
	require.Equal(t, []Action{Forward{Bytes: []byte("SMGW"), Last: true}}, s.Tick(s.Deadline()), "held for ever")
}

// raw returns a server whose client is native, and has said nothing with the segment that said so.
func raw(t *testing.T) *Server {
	s := waiting(ConfirmedNo)
	require.Equal(t, []Action{DialRaw{}}, s.Tick(t0))
	return s
}

// Where a box has taken the confirm off a PROPOSAL the application is not dialled.
func TestServerGuardsTheDial(t *testing.T) {
	require.Equal(t, aborted(ReasonAcceptLost, false, false), waiting(ConfirmedNo).Receive(t0, vector(t, "proposal")))

	s := waiting(ConfirmedNo)
	require.Nil(t, s.Receive(t0, vector(t, "proposal")[:guardLen-1]))
	require.Nil(t, s.Tick(t0))
	require.Equal(t, []Action{DialRaw{}}, s.Tick(s.Deadline()), "held for ever")
	require.Equal(t, []Action{RelayRaw{}, Forward{Bytes: vector(t, "proposal")[:guardLen-1], Last: true}}, s.RawDialled(t0, true, 0))
}

// Whatever makes a server hurry: it says DECLINE when the dial has not been accepted and never will be, and else ACCEPT.
func TestServerGivesTheDialUp(t *testing.T) {
	for _, c := range []struct {
		hurry func(s *Server) []Action
		want  Reason
	}{
		{func(s *Server) []Action { return s.Tick(s.Deadline()) }, ReasonAppUnreachable},
		{func(s *Server) []Action { return s.Receive(t0, vector(t, "ask")) }, ReasonProposalLate},
		{func(s *Server) []Action { return s.Receive(at(time.Second), vector(t, "ask")) }, ReasonHandshakeTimeout},
		{func(s *Server) []Action { return s.Cancel(t0, ReasonDrained) }, ReasonDrained},
	} {
		for _, accepted := range []bool{false, true} {
			s := dialling(t)
			require.Equal(t, []Action{Undial{}}, c.hurry(s))
			require.Nil(t, c.hurry(s), "once")
			require.True(t, s.Deadline().IsZero(), "the owner's")
			if !accepted {
				require.Equal(t, declineActions(c.want), s.Dialled(t0, false, ReasonNone))
				require.Nil(t, s.Receive(t0, vector(t, "ask")))
				continue
			}
			require.Equal(t, []Action{Send{Bytes: vector(t, "accept")}}, s.Dialled(t0, true, ReasonNone))
			require.Nil(t, s.Receive(t0, vector(t, "ask")), "ACCEPT is on its way")
			require.Nil(t, s.Receive(t0, append(vector(t, "ask"), vector(t, "ask")...)))
			require.Equal(t, Carry{CarrierSHM}, s.Receive(t0, confirmBytes(CarrierSHM))[0])
		}
	}
	late := serving(t)
	require.Len(t, late.Reserved(at(150*time.Millisecond), goldenAccept(t)), 1)
	require.Equal(t, []Action{Undial{}}, late.Tick(late.Deadline()))
	require.Equal(t, declineActions(ReasonHandshakeTimeout), late.Dialled(t0, false, ReasonNone), "it is not the application that is slow")

	s := dialling(t)
	s.Cancel(t0, ReasonDrained)
	s.Dialled(t0, true, ReasonNone)
	require.Equal(t, at(2*completingTimeout+2*testRTT), s.Deadline(), "it ends")
}

// ASK before the dial: there will be none. The server says whose time it was that has passed: what was late when it came
// is not to be remembered about the one that it came to.
func TestServerAsked(t *testing.T) {
	s := serving(t)
	own := s.Deadline()
	require.Equal(t, declineActions(ReasonHandshakeTimeout), s.Receive(own, vector(t, "ask")))
	require.True(t, CachePolicy{}.Remembers(Verdict{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout, Remote: true}))
	s = serving(t)
	require.Equal(t, declineActions(ReasonProposalLate), s.Receive(own.Add(-1), vector(t, "ask")))
	require.False(t, CachePolicy{}.Remembers(Verdict{Outcome: OutcomeReleased, Reason: ReasonProposalLate, Remote: true}))
	require.Nil(t, s.Reserved(t0, goldenAccept(t)))
	require.Equal(t, declineActions(ReasonProtocolError), waiting(ConfirmedYes).Receive(t0, vector(t, "ask")), "about nothing")

	s = accepted(t)
	s.PeerData(t0, CarrierSHM)
	require.Equal(t, []Action{Records{}}, s.Receive(t0, append(vector(t, "ask"), confirmBytes(CarrierSHM)...)))

	keyed := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	c, p := proposed(t, ClientConfig{Keys: Keys{testKey}, Binding: testBinding})
	keyed.Start(t0, testRTT, ConfirmedYes)
	require.Len(t, keyed.Receive(t0, p), 1)
	later := *keyed
	require.Equal(t, aborted(ReasonAuthFailed, true, false), later.Receive(t0, vector(t, "ask")), "without a mac")
	no := keyed.Receive(t0, c.Tick(c.Deadline())[0].(Send).Bytes)
	require.Equal(t, released(ReasonProposalLate, true), c.Receive(t0, no[0].(Send).Bytes))
}

func TestServerUnknown(t *testing.T) {
	s := waiting(ConfirmedUnknown)
	require.Nil(t, s.Receive(t0, vector(t, "proposal")[:20]))
	require.Len(t, s.Receive(t0, vector(t, "proposal")[20:]), 1)
	require.Equal(t, StageNegotiating, s.Stage())

	s = waiting(ConfirmedUnknown)
	require.Equal(t, []Action{DialRaw{}}, s.Receive(t0, []byte("GET")))

	s = waiting(ConfirmedUnknown)
	require.IsType(t, DialRaw{}, s.Tick(s.Deadline())[0])
	require.True(t, s.Reading())

	s = waiting(ConfirmedUnknown)
	require.Equal(t, []Action{DialRaw{}}, s.EOF(t0))
	require.Equal(t, []Action{RelayRaw{}, Forward{Last: true}}, s.RawDialled(t0, true, 0))

	s = waiting(ConfirmedUnknown)
	require.Nil(t, s.confirm(t0, ConfirmedYes))
	require.Equal(t, aborted(ReasonClientGone, true, true), s.Tick(s.Deadline()))

	s = waiting(ConfirmedUnknown)
	require.Nil(t, s.confirm(t0, ConfirmedNo))
	require.Equal(t, []Action{DialRaw{}}, s.Tick(s.Deadline()))
}

func TestAuthenticatedHandshake(t *testing.T) {
	c, p := proposed(t, ClientConfig{Keys: Keys{testKey}, Binding: testBinding})
	s := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	s.Start(t0, testRTT, ConfirmedYes)
	require.IsType(t, Serve{}, s.Receive(t0, p)[0])
	accept := served(s, t0, goldenAccept(t))[0].(Send).Bytes
	require.Len(t, c.Receive(t0, accept), 2)
	c.AppAccepted(t0)
	confirm := c.Proved(t0, CarrierSHM, true)[0].(Send).Bytes
	require.Equal(t, Carry{CarrierSHM}, s.Receive(t0, confirm)[0])

	// A recorded PROPOSAL does not fit another connection, and its sender is not served.
	again := testBinding
	again.ServerISN++
	other := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: again}, testNonce)
	other.Start(t0, testRTT, ConfirmedYes)
	todo := other.Receive(t0, p)
	require.Len(t, todo, 2)
	require.IsType(t, Drop{}, todo[1])
	v, _ := other.Verdict()
	require.Equal(t, Verdict{Outcome: OutcomeDeclined, Reason: ReasonAuthFailed}, v)

	// A recorded CONFIRM does not fit another ACCEPT, even with the same key.
	other = NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	other.Start(t0, testRTT, ConfirmedYes)
	other.Receive(t0, p)
	a := goldenAccept(t)
	a.Carriers[0].SHM.Key[0]++
	served(other, t0, a)
	require.Equal(t, aborted(ReasonAuthFailed, true, false), other.Receive(t0, confirm))
}

// A DECLINE that is not authenticated ends the handshake, and its reason is not believed.
func TestAuthenticatedDecline(t *testing.T) {
	cfg := ClientConfig{Keys: Keys{testKey}, Binding: testBinding}
	seal := func(from Speaker, prev MAC) []byte {
		b, _ := Seal(encodeDecline(Decline{Version: 1, Reason: ReasonDrained}), 0, testKey,
			Chain{Binding: testBinding, From: from, Prev: prev})
		return b
	}
	c, p := proposed(t, cfg)
	mac := MAC(p[len(p)-MACLen:])
	require.Equal(t, released(ReasonDrained, true), c.Receive(t0, seal(FromServer, mac)))
	c, _ = proposed(t, cfg)
	require.Equal(t, released(ReasonDrained, true), c.Receive(t0, seal(FromServer, MAC{})), "before the PROPOSAL was believed")
	c, _ = proposed(t, cfg)
	require.Equal(t, released(ReasonAuthFailed, true), c.Receive(t0, seal(FromClient, mac)), "reflected")
	c, _ = proposed(t, cfg)
	require.Equal(t, released(ReasonAuthFailed, true), c.Receive(t0, vector(t, "decline")))

	s := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	s.Start(t0, testRTT, ConfirmedYes)
	s.Receive(t0, p)
	v := Verdict{Outcome: OutcomeDeclined, Reason: ReasonDrained, Remote: true}
	require.Equal(t, []Action{Abort{Verdict: v, Silent: true}}, s.Receive(t0, seal(FromClient, mac)))
}

// released is what a client does that is told no.
func released(r Reason, remote bool) []Action {
	return []Action{Release{Verdict: Verdict{Outcome: OutcomeReleased, Reason: r, Remote: remote}}}
}

// With a key, data on a queue pair wait for the CONFIRM.
func TestAuthenticatedPeerData(t *testing.T) {
	_, p := proposed(t, ClientConfig{Keys: Keys{testKey}, Binding: testBinding})
	s := NewServer(ServerConfig{Keys: Keys{testKey}, Binding: testBinding}, testNonce)
	s.Start(t0, testRTT, ConfirmedYes)
	s.Receive(t0, p)
	served(s, t0, goldenAccept(t))
	require.Nil(t, s.PeerData(t0, CarrierSHM))
	require.Equal(t, StageCompleting, s.Stage())
}

// A server that ends does not wait for the last word as one that goes on does.
func TestServerCancelledAfterAccept(t *testing.T) {
	s := accepted(t)
	late := s.Deadline()
	require.Nil(t, s.Cancel(at(time.Second), ReasonDrained))
	require.Equal(t, at(time.Second+2*completingTimeout+2*testRTT), s.Deadline())
	require.Nil(t, s.Cancel(at(1500*time.Millisecond), ReasonDrained), "once")
	require.Equal(t, at(time.Second+2*completingTimeout+2*testRTT), s.Deadline())
	require.True(t, s.Deadline().Before(late))
	require.Equal(t, ReasonClientGone, s.Tick(s.Deadline())[0].(Abort).Verdict.Reason)
}

func TestSeen(t *testing.T) {
	var s Seen
	mac := func(i int) (m MAC) {
		binary.BigEndian.PutUint64(m[:], uint64(i))
		return m
	}
	const last = 3*seenMost + seenMost/2 // half of a generation is young
	for i := range last {
		require.True(t, s.first(mac(i)))
		require.False(t, s.first(mac(i)))
	}
	for i := last - seenMost; i < last; i++ {
		require.False(t, s.first(mac(i)), "of the last ones")
	}
	require.LessOrEqual(t, len(s.young)+len(s.old), 2*seenMost)
}

// A PROPOSAL is believed once, even if its connection came again as it was.
func TestServerBelievesAProposalOnce(t *testing.T) {
	cfg := ServerConfig{Keys: Keys{testKey}, Binding: testBinding, Seen: &Seen{}}
	_, p := proposed(t, ClientConfig{Keys: Keys{testKey}, Binding: testBinding})
	first := NewServer(cfg, testNonce)
	first.Start(t0, testRTT, ConfirmedYes)
	require.IsType(t, Serve{}, first.Receive(t0, p)[0])
	again := NewServer(cfg, testNonce)
	again.Start(t0, testRTT, ConfirmedYes)
	require.IsType(t, Drop{}, again.Receive(t0, p)[1])
	v, _ := again.Verdict()
	require.Equal(t, Verdict{Outcome: OutcomeDeclined, Reason: ReasonAuthFailed}, v)
}
