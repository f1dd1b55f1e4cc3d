package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const testRTT = 10 * time.Millisecond

var t0 = time.Unix(1_800_000_000, 0)

func at(d time.Duration) time.Time { return t0.Add(d) }

// proposed returns a client that has sent its PROPOSAL at t0.
func proposed(t *testing.T, cfg ClientConfig) (*Client, []byte) {
	c := NewClient(cfg, goldenProposal(t))
	todo := c.Start(t0, testRTT)
	require.Len(t, todo, 1)
	return c, todo[0].(Send).Bytes
}

// acceptBoth is an ACCEPT of both carriers of the golden PROPOSAL, shm first.
func acceptBoth(t *testing.T) []byte {
	a := goldenAccept(t)
	a.Carriers = append(a.Carriers, goldenProposal(t).Carriers[1])
	return encodeAccept(&a)
}

// completing returns a client that has read ACCEPT at t0 + 20 ms.
func completing(t *testing.T) *Client {
	c, _ := proposed(t, ClientConfig{})
	todo := c.Receive(at(20*time.Millisecond), acceptBoth(t))
	require.Len(t, todo, 2)
	require.Equal(t, CarrierSHM, todo[0].(HandOver).Accept.Carriers[0].Kind)
	require.Equal(t, Prove{Offer: goldenAccept(t).Carriers[0], Timeout: proofTimeout(defaultHandshakeTimeout, testRTT)}, todo[1])
	return c
}

func requireConfirmed(t *testing.T, c *Client, todo []Action, k CarrierKind) {
	t.Helper()
	require.Equal(t, []Action{
		Send{Bytes: AppendConfirm(nil, Confirm{Version: 1, Carrier: k})}, Carry{Carrier: k}, Records{},
	}, todo)
	v, ok := c.Verdict()
	require.True(t, ok)
	require.Equal(t, OutcomeCarried, v.Outcome)
	require.Equal(t, k, v.Carrier)
	require.True(t, c.Deadline().IsZero())
}

func requireDeclined(t *testing.T, todo []Action, r Reason) {
	t.Helper()
	require.Len(t, todo, 2)
	require.Equal(t, Send{Bytes: encodeDecline(Decline{Version: 1, Reason: r})}, todo[0])
	v := todo[1].(Release).Verdict
	v.Shown, v.Waited = false, 0 // TestVerdictsRestOnThePeer
	require.Equal(t, Verdict{Outcome: OutcomeReleased, Reason: r}, v)
}

// What a client falls back for is about the server as far as that has decided or sent it, or has been silent for so long.
// What this host lacks, or its application does, is not.
func TestVerdictsRestOnThePeer(t *testing.T) {
	asking := func(t *testing.T) *Client {
		c, _ := proposed(t, ClientConfig{})
		c.Tick(c.Deadline())
		return c
	}
	proposing := func(t *testing.T) *Client { c, _ := proposed(t, ClientConfig{}); return c }
	relayed := func(t *testing.T) *Client {
		c := completing(t)
		c.AppAccepted(t0)
		return c
	}
	for name, c := range map[string]struct {
		client   func(*testing.T) *Client
		input    func(*testing.T, *Client)
		want     Verdict
		remember bool
	}{
		"decline":         {proposing, func(t *testing.T, c *Client) { c.Receive(t0, vector(t, "decline")) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonAppRefused, Remote: true}, true},
		"native bytes":    {proposing, func(_ *testing.T, c *Client) { c.Receive(t0, []byte("220 mail ESMTP")) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonAcceptLost, Shown: true}, true},
		"garbage":         {completing, func(_ *testing.T, c *Client) { c.Receive(t0, []byte("x")) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonProtocolError, Shown: true}, true},
		"silence":         {asking, func(_ *testing.T, c *Client) { c.Tick(at(time.Minute)) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout, Waited: 240*time.Millisecond + askTime}, true},
		"reset":           {proposing, func(_ *testing.T, c *Client) { c.WireLost(t0) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonWireReset, Remote: true, Waited: askTime}, true},
		"proofs":          {relayed, func(_ *testing.T, c *Client) { c.Tick(at(time.Minute)) }, Verdict{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable, Waited: minProofTimeout}, true},
		"wire leg full":   {proposing, func(_ *testing.T, c *Client) { c.WireFailed(t0) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonWireReset}, false},
		"cancelled":       {asking, func(_ *testing.T, c *Client) { c.Cancel(t0, ReasonNoMemory); c.Tick(at(time.Minute)) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout, Waited: 240*time.Millisecond + askTime}, true},
		"cancelled first": {proposing, func(_ *testing.T, c *Client) { c.Cancel(t0, ReasonNoMemory); c.Tick(at(time.Minute)) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonNoMemory}, false},
		"application":     {completing, func(_ *testing.T, c *Client) { c.AppFailed(t0) }, Verdict{Outcome: OutcomeReleased, Reason: ReasonClientGone}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := c.client(t)
			c.input(t, client)
			v, decided := client.Verdict()
			require.True(t, decided)
			require.Equal(t, c.want, v)
			require.Equal(t, c.remember, CachePolicy{}.Remembers(v))
		})
	}
}

// A server takes a client for native because of what that sends, or because it sends no PROPOSAL.
func TestNativeClientsRestOnThePeer(t *testing.T) {
	s := waiting(ConfirmedUnknown)
	require.Equal(t, []Action{DialRaw{Waited: budget(defaultHandshakeTimeout, testRTT)}}, s.Tick(s.Deadline()))
	require.Equal(t, []Action{DialRaw{}}, waiting(ConfirmedUnknown).Receive(t0, []byte("GET / HTTP/1.1\r\n\r\n"))[:1])
	require.Equal(t, []Action{DialRaw{}}, waiting(ConfirmedUnknown).EOF(t0)[:1])
	require.Equal(t, []Action{DialRaw{}}, waiting(ConfirmedNo).Tick(t0))
}

func TestClientProposes(t *testing.T) {
	c, b := proposed(t, ClientConfig{})
	require.Equal(t, StageNegotiating, c.Stage())
	p, _, err := parseProposal(b)
	require.NoError(t, err)
	want := goldenProposal(t)
	want.Budget = 240 * time.Millisecond
	require.Equal(t, want, p)
	require.Equal(t, at(240*time.Millisecond), c.Deadline())
	require.Nil(t, c.Start(t0, testRTT))
	require.Nil(t, c.Tick(at(239*time.Millisecond)))
}

func TestClientCarries(t *testing.T) {
	for _, appFirst := range []bool{true, false} {
		c := completing(t)
		require.Equal(t, StageCompleting, c.Stage())
		now := at(25 * time.Millisecond)
		if appFirst {
			require.Nil(t, c.AppAccepted(now))
			requireConfirmed(t, c, c.Proved(now, CarrierSHM, true), CarrierSHM)
		} else {
			require.Nil(t, c.Proved(now, CarrierSHM, true))
			requireConfirmed(t, c, c.AppAccepted(now), CarrierSHM)
		}
		require.Equal(t, []Action{Records{Rest: []byte("x")}}, c.Receive(now, []byte("x")))
		require.Nil(t, c.WireLost(now))
		require.Nil(t, c.Cancel(now, ReasonDrained))
	}
}

func TestClientNextCarrierThenRelay(t *testing.T) {
	c := completing(t)
	require.Nil(t, c.AppAccepted(at(21*time.Millisecond)))
	require.Equal(t, at(520*time.Millisecond), c.Deadline(), "its queue pair is being connected")
	require.Nil(t, c.Proving(at(50*time.Millisecond), CarrierSoft), "the next one's")
	require.Equal(t, at(520*time.Millisecond), c.Deadline())
	require.Nil(t, c.Proving(at(50*time.Millisecond), CarrierSHM))
	require.Equal(t, at(250*time.Millisecond), c.Deadline(), "proof of shm")
	todo := c.Tick(at(250 * time.Millisecond))
	require.Equal(t, CarrierSoft, todo[0].(Prove).Offer.Kind)
	require.Nil(t, c.Proved(at(251*time.Millisecond), CarrierSHM, true), "too late")
	require.Nil(t, c.Proving(at(251*time.Millisecond), CarrierSHM))
	require.Equal(t, at(520*time.Millisecond), c.Deadline(), "the next one's queue pair")
	requireConfirmed(t, c, c.Proved(at(252*time.Millisecond), CarrierSoft, false), CarrierRelay)
	v, _ := c.Verdict()
	require.Equal(t, ReasonCarrierUnreachable, v.Reason)
	require.False(t, v.Remote)
}

func TestClientAcceptInPieces(t *testing.T) {
	c, _ := proposed(t, ClientConfig{})
	msg := acceptBoth(t)
	for i := range len(msg) - 1 {
		require.Nil(t, c.Receive(t0, msg[i:i+1]))
	}
	require.Len(t, c.Receive(t0, msg[len(msg)-1:]), 2)
}

// A client whose time is over asks. It goes on natively when the server says so, or says nothing for two seconds.
func TestClientAsks(t *testing.T) {
	asking := func() *Client {
		c, _ := proposed(t, ClientConfig{})
		require.Equal(t, []Action{Send{Bytes: vector(t, "ask")}}, c.Tick(at(240*time.Millisecond)))
		require.Equal(t, StageNegotiating, c.Stage())
		require.Equal(t, at(740*time.Millisecond), c.Deadline())
		return c
	}
	c := asking()
	require.Len(t, c.Receive(at(2*time.Second), acceptBoth(t)), 2)
	require.Equal(t, StageCompleting, c.Stage())

	c = asking()
	require.Equal(t, released(ReasonAppRefused, true), c.Receive(t0, vector(t, "decline")))

	c = asking()
	require.IsType(t, Release{}, c.WireLost(t0)[0])

	c = asking()
	for _, ms := range []int{740, 1240, 1740} {
		require.Equal(t, at(time.Duration(ms)*time.Millisecond), c.Deadline())
		require.Equal(t, []Action{Send{Bytes: vector(t, "ask")}}, c.Tick(c.Deadline()))
	}
	require.Equal(t, at(2240*time.Millisecond), c.Deadline())
	requireDeclined(t, c.Tick(c.Deadline()), ReasonHandshakeTimeout)
	require.Nil(t, c.Receive(at(3*time.Second), acceptBoth(t)))

	c, _ = proposed(t, ClientConfig{})
	require.Len(t, c.Tick(at(5*time.Second)), 1, "a client that is late gives the server its time all the same")
	require.Nil(t, c.Tick(at(5*time.Second)))
	require.Len(t, c.Tick(at(6999*time.Millisecond)), 1)
	requireDeclined(t, c.Tick(at(7*time.Second)), ReasonHandshakeTimeout)
}

// One that is cancelled asks, too.
func TestClientCancelled(t *testing.T) {
	cancelled := func() *Client {
		c, _ := proposed(t, ClientConfig{})
		require.Equal(t, []Action{Send{Bytes: vector(t, "ask")}}, c.Cancel(t0, ReasonDrained))
		require.Nil(t, c.Cancel(t0, ReasonOff))
		return c
	}
	c, now := cancelled(), t0
	for len(c.Tick(c.Deadline())) == 1 {
		now = c.Deadline()
	}
	require.Equal(t, at(2240*time.Millisecond), now)
	require.Equal(t, OutcomeReleased, c.verdict.Outcome)

	c = cancelled()
	require.Equal(t, released(ReasonOff, false), c.Receive(t0, vector(t, "decline")))

	c = cancelled()
	require.Len(t, c.Receive(t0, acceptBoth(t)), 2, "the server's application has the connection")
	c.Proved(t0, CarrierSHM, true)
	todo := c.AppAccepted(t0)
	require.Equal(t, Abort{Verdict: Verdict{Outcome: OutcomeAborted, Reason: ReasonOff}}, todo[1])

	c = completing(t)
	require.Nil(t, c.Cancel(at(20*time.Millisecond), ReasonDrained))
	require.Equal(t, at(520*time.Millisecond), c.Deadline())
	requireDeclined(t, c.Tick(c.Deadline()), ReasonDrained)
}

// Once the application is connected to the gateway there is no way back to the kernel.
func TestClientAbortsAfterAccept(t *testing.T) {
	for name, input := range map[string]func(*Client) []Action{
		"wire lost": func(c *Client) []Action { return c.WireLost(t0) },
		"garbage":   func(c *Client) []Action { return c.Receive(t0, []byte("x")) },
		"cancel":    func(c *Client) []Action { return c.Cancel(t0, ReasonDrained) },
		"app ended": func(c *Client) []Action { return c.AppFailed(t0) },
		"decline":   func(c *Client) []Action { return c.Receive(t0, vector(t, "decline")) },
	} {
		c := completing(t)
		require.Nil(t, c.AppAccepted(t0))
		todo := input(c)
		require.IsType(t, Abort{}, todo[len(todo)-1], name)
		v, _ := c.Verdict()
		require.Equal(t, OutcomeAborted, v.Outcome, name)
	}
}

// A proof that hangs until the end of completing means relay, not a refusal.
func TestClientSlowProofsMeanRelay(t *testing.T) {
	c, _ := proposed(t, ClientConfig{})
	c.rtt = time.Second
	c.Receive(t0, acceptBoth(t))
	require.Nil(t, c.AppAccepted(t0))
	require.Equal(t, at(completingTimeout), c.Deadline())
	requireConfirmed(t, c, c.Tick(at(completingTimeout)), CarrierRelay)
}

func TestClientRefusesBadAccept(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(a *Accept)
		want  Reason
	}{
		"version":      {func(a *Accept) { a.Version = 2 }, ReasonProtocolError},
		"not offered":  {func(a *Accept) { a.Carriers[0] = hwOffer(t) }, ReasonProtocolError},
		"no carrier":   {func(a *Accept) { a.Carriers = nil }, ReasonProtocolError},
		"without mac":  {func(*Accept) {}, ReasonAuthFailed},
		"with garbage": {func(*Accept) {}, ReasonProtocolError},
	} {
		cfg := ClientConfig{}
		if c.want == ReasonAuthFailed {
			cfg.Keys = Keys{testKey}
		}
		client, _ := proposed(t, cfg)
		a := goldenAccept(t)
		c.spoil(&a)
		msg := encodeAccept(&a)
		if name == "with garbage" {
			msg = append(msg, 'x')
		}
		todo := client.Receive(t0, msg)
		if c.want == ReasonAuthFailed {
			require.True(t, sealed(todo[0].(Send).Bytes))
			require.Equal(t, []Action{Release{Verdict: Verdict{Outcome: OutcomeReleased, Reason: c.want, Shown: true}}}, todo[1:])
			continue
		}
		requireDeclined(t, todo, c.want)
	}
	client, _ := proposed(t, ClientConfig{})
	requireDeclined(t, client.Receive(t0, withTLV(acceptBoth(t), 0x8077, nil)), ReasonVersion)
	client, _ = proposed(t, ClientConfig{})
	requireDeclined(t, client.Receive(t0, []byte("220 mail ESMTP")), ReasonAcceptLost)
	for _, garbage := range []string{"SMGW\x01\x01\x00\x08", "SMGW\x09\x01\x00\x08", "SMGW\x02\x01\xff\xff"} {
		client, _ = proposed(t, ClientConfig{})
		requireDeclined(t, client.Receive(t0, []byte(garbage)), ReasonProtocolError)
	}
}

func hwOffer(t testing.TB) CarrierOffer {
	hw := goldenProposal(t).Carriers[1]
	hw.Kind = CarrierHW
	return hw
}

// An ACCEPT that was read late does not move the time of the last word.
func TestClientLateAccept(t *testing.T) {
	c, _ := proposed(t, ClientConfig{})
	require.Len(t, c.Receive(at(500*time.Millisecond), acceptBoth(t)), 2)
	require.Nil(t, c.Proved(at(500*time.Millisecond), CarrierSHM, true))
	require.Equal(t, at(time.Second), c.Deadline())

	c, _ = proposed(t, ClientConfig{})
	require.Len(t, c.Receive(at(time.Minute), acceptBoth(t)), 2)
	require.Equal(t, at(2740*time.Millisecond), c.Deadline())
}

// The server has the connection, and accept() has not returned: the application is handed over until it gives up, for as
// long as a kernel repeats its SYN.
func TestClientHandsOverAgain(t *testing.T) {
	for _, timeout := range []time.Duration{0, 7 * time.Second} {
		c, _ := proposed(t, ClientConfig{HandshakeTimeout: timeout})
		require.Len(t, c.Receive(at(0), acceptBoth(t)), 2)
		require.Nil(t, c.Proved(at(0), CarrierSHM, true))
		last := t0
		for c.Deadline().Before(at(appWaitTimeout)) {
			require.LessOrEqual(t, c.Deadline().Sub(last), maxHandOver)
			last = c.Deadline()
			require.Equal(t, []Action{HandOverAgain{}}, c.Tick(last))
		}
		require.Equal(t, at(appWaitTimeout), c.Deadline())
		late := *c
		requireDeclined(t, c.Tick(c.Deadline()), ReasonClientGone)
		require.Len(t, late.AppAccepted(late.Deadline()), 3)
	}
	c := completing(t)
	require.Equal(t, []Action{HandOverAgain{}}, c.Tick(c.Deadline()))
	require.Nil(t, c.AppAccepted(at(time.Second)))
	requireConfirmed(t, c, c.Tick(c.Deadline()), CarrierRelay)
}

func TestClientCancelledBeforeStart(t *testing.T) {
	for _, keys := range []Keys{nil, {[]byte("key")}} {
		c := NewClient(ClientConfig{Keys: keys}, Proposal{Nonce: 7})
		require.Equal(t, StageAccepted, c.Stage())
		require.True(t, c.Deadline().IsZero())
		todo := c.Cancel(t0, ReasonNoMemory)
		require.Len(t, todo, 2)
		require.Equal(t, Release{Verdict{Outcome: OutcomeReleased, Reason: ReasonNoMemory}}, todo[1])
		require.Nil(t, c.Cancel(t0, ReasonNoMemory))
		require.Nil(t, c.Tick(t0))

		for _, confirmed := range []Confirmed{ConfirmedYes, ConfirmedUnknown} {
			s := NewServer(ServerConfig{Keys: keys}, 7)
			s.Start(t0, 0, confirmed)
			verdict := Verdict{Outcome: OutcomeDeclined, Reason: ReasonNoMemory, Remote: true}
			require.Equal(t, []Action{Abort{Verdict: verdict, Silent: true}}, s.Receive(t0, todo[0].(Send).Bytes))
		}
		s := NewServer(ServerConfig{Keys: keys}, 7)
		s.Start(t0, 0, ConfirmedNo)
		s.RawDialled(t0, true, ReasonNone)
		require.Equal(t, []Action{Abort{Verdict: Verdict{Outcome: OutcomeAborted, Reason: ReasonAcceptLost, Shown: true}}},
			s.Receive(t0, todo[0].(Send).Bytes), "nothing of it reaches an application")
	}
}

func TestDeadlines(t *testing.T) {
	ms := time.Millisecond
	require.Equal(t, 204*ms, budget(200*ms, ms))
	require.Equal(t, maxBudget, budget(200*ms, time.Hour))
	require.Equal(t, 200*ms, proofTimeout(200*ms, ms))
	require.Equal(t, 300*ms, proofTimeout(200*ms, 150*ms))
	require.Equal(t, time.Second, proofTimeout(10*time.Second, ms))
	require.Equal(t, 500*ms, completingTime(2*time.Second))
	require.Equal(t, 2500*ms, completingTime(10*time.Second))
	require.Equal(t, 180*ms, serveTime(208*ms, ms))
	require.Equal(t, 50*ms, serveTime(100*ms, 40*ms))
	require.Equal(t, 2706*ms+130*time.Second, lastWordTime(204*ms, ms))
}

// A server always waits for longer than the client can take: its clock starts half a round trip after the client's, the
// last word needs another half.
func TestDeadlinesNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "timeout"))
		rtt := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "rtt"))
		budget := budget(timeout, rtt)
		require.Greater(t, rtt/2+lastWordTime(budget, rtt), budget+completingTimeout+rtt/2)
		require.Greater(t, rtt/2+lastWordTime(budget, rtt), budget+askTime+appWaitTimeout+rtt/2)
		if budget >= 4*rtt { // the client's and the server's round trips are the same
			require.LessOrEqual(t, rtt/2+serveTime(budget, rtt)+rtt/2, budget)
		}
	})
}
