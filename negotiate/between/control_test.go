package between_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

var (
	t0   = time.Unix(1_800_000_000, 0)
	key  = []byte("smcgw test key")
	ends = [2]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:4790")}
)

// carriers are offers of two kinds, as one host makes them.
func carriers(host byte) []negotiate.CarrierOffer {
	roce := negotiate.RoCEEndpoint{GID: netip.AddrFrom4([4]byte{10, 0, 0, host}).As16(), UDPPort: 4791, MTU: 1024, QPN: uint32(host)}
	return []negotiate.CarrierOffer{{Kind: negotiate.CarrierHW, RoCE: roce}, {Kind: negotiate.CarrierSoft, RoCE: roce}}
}

func testOffer() *between.Offer {
	return &between.Offer{Name: between.Name{ClientISN: 1, ServerISN: 2, ClientPort: 3, ServerPort: 4}, Order: 16, Nonces: [2][16]byte{{1}, {2}}, Carriers: carriers(1)}
}

func config(side int, keys ...[]byte) between.Config {
	return between.Config{
		Opener: side == 0, Local: ends[side], Remote: ends[1-side], Keys: keys, MaxConns: 3, MaxOffers: 2,
		Hello: between.Hello{GatewayID: [16]byte{'g', byte(side)}, Random: [16]byte{'r', byte(side)}},
	}
}

// pair is both ends of a control connection on which nothing is lost: 0 has opened it.
type pair struct {
	t     testing.TB
	now   time.Time
	side  [2]*between.Control
	got   [2][]between.Action
	said  [2][]byte // all that was written
	holds [2]bool   // its bytes are not delivered for now
}

func newPair(t testing.TB, a, b between.Config) *pair {
	return &pair{t: t, now: t0, side: [2]*between.Control{between.New(a, t0), between.New(b, t0)}}
}

// greetedPair is one that has said HELLO.
func greetedPair(t testing.TB, keys ...[]byte) *pair {
	p := newPair(t, config(0, keys...), config(1, keys...))
	p.pump()
	for i := range p.side {
		require.Equal(t, []between.Action{between.Greeted{Peer: between.Hello{
			MinVersion: 1, MaxVersion: 1, GatewayID: [16]byte{'g', byte(1 - i)}, Random: [16]byte{'r', byte(1 - i)},
		}}}, p.take(i))
	}
	return p
}

// pump delivers everything, byte by byte.
func (p *pair) pump() {
	for moved := true; moved; {
		moved = false
		for i, c := range p.side {
			for !p.holds[i] && len(c.Pending()) > 0 {
				b := c.Pending()[0]
				c.Wrote(1)
				p.said[i] = append(p.said[i], b)
				p.got[1-i] = append(p.got[1-i], p.side[1-i].Receive(p.now, []byte{b})...)
				moved = true
			}
		}
	}
}

// do adds what a side has to do, and delivers.
func (p *pair) do(i int, todo []between.Action) {
	p.got[i] = append(p.got[i], todo...)
	p.pump()
}

// take returns what a side was told since.
func (p *pair) take(i int) []between.Action {
	got := p.got[i]
	p.got[i] = nil
	return got
}

func (p *pair) tick(d time.Duration) {
	p.now = p.now.Add(d)
	for i, c := range p.side {
		p.do(i, c.Tick(p.now))
	}
}

// offer has an OFFER sent, and returns its number.
func (p *pair) offer() uint64 {
	n, todo := p.side[0].Offer(p.now, testOffer())
	require.NotZero(p.t, n)
	p.do(0, todo)
	require.Equal(p.t, []between.Action{between.Find{Number: n, Offer: *testOffer()}}, p.take(1))
	return n
}

// answered has one answered, with the second carrier.
func (p *pair) answered() uint64 {
	n, answer := p.offer(), carriers(2)[1:]
	p.do(1, p.side[1].Answer(p.now, n, 18, answer))
	require.Equal(p.t, []between.Action{between.Prove{Number: n, Carriers: answer, Order: 18}}, p.take(0))
	return n
}

// promoted has one promoted.
func (p *pair) promoted() uint64 {
	n := p.answered()
	p.do(0, p.side[0].Proved(p.now, n, negotiate.CarrierSoft))
	for i := range p.side {
		require.Equal(p.t, []between.Action{between.Carry{Number: n, Carrier: negotiate.CarrierSoft}}, p.take(i))
	}
	return n
}

// phases bring a number there.
var phases = []struct {
	name string
	to   func(*pair) uint64
}{
	{"offered", (*pair).offer},
	{"answered", (*pair).answered},
	{"promoted", (*pair).promoted},
	{"gone", func(p *pair) uint64 {
		n := p.promoted()
		p.do(0, p.side[0].Decline(p.now, n, negotiate.ReasonDeviceFailed))
		require.Equal(p.t, []between.Action{between.Lose{Number: n, Reason: negotiate.ReasonDeviceFailed, Remote: true}}, p.take(1))
		return n
	}},
}

func TestPromoted(t *testing.T) {
	for _, keys := range [][][]byte{nil, {key}} {
		p := greetedPair(t, keys...)
		first := p.promoted()
		n := p.promoted()
		require.Greater(t, n, first)
		for i, c := range p.side {
			for range 2 { // said once
				p.do(i, c.Attached(p.now, n))
			}
			require.Equal(t, []between.Action{between.Tell{Number: n, Attached: true}}, p.take(1-i))
			p.do(i, c.Opened(p.now, n, between.Place{Sent: 5, Opened: true, At: 5}))
			answers := i == 1 // the last question of the first round
			require.Equal(t, []between.Action{between.TellPlace{Number: n, Place: between.Place{Sent: 5, Opened: true, At: 5}, Latest: answers}}, p.take(1-i))
			for range 3 { // the second and third are asked together, after the answer to the first
				p.do(i, c.Where(p.now, n))
			}
			for _, latest := range []bool{false, true} {
				require.Equal(t, []between.Action{between.Ask{Number: n}}, p.take(1-i))
				p.do(1-i, p.side[1-i].Opened(p.now, n, between.Place{Sent: 9}))
				require.Equal(t, []between.Action{between.TellPlace{Number: n, Place: between.Place{Sent: 9}, Latest: latest}}, p.take(i))
			}
			p.do(i, c.Where(p.now, n))
			require.Equal(t, []between.Action{between.Ask{Number: n}}, p.take(1-i))
			p.do(i, c.Recall(p.now, n))
			require.Equal(t, []between.Action{between.Tell{Number: n, Attached: true, Recall: true}}, p.take(1-i))
		}
		p.do(0, p.side[0].Exited(p.now, n, 77, 1<<63))
		require.Equal(t, []between.Action{between.PeerEnded{Number: n, Exited: true, Written: 77}}, p.take(1))
		p.do(1, p.side[1].Exited(p.now, n, 78, 0)) // it is over
		p.do(1, p.side[1].Left(p.now, first))
		require.Equal(t, []between.Action{between.PeerEnded{Number: first}}, p.take(0))
		require.Empty(t, p.take(1))
		p.tick(time.Minute)
		require.Equal(t, []between.Action{between.Closed{}}, p.take(0))
		p.do(1, p.side[1].Broken())
		require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonWireReset, Remote: true}}, p.take(1))
	}
}

// TestManyWaitsEnd: that many waits end one shortly after the other takes little time.
func TestManyWaitsEnd(t *testing.T) {
	const all = 1024
	a, b := config(0), config(1)
	a.MaxConns, a.MaxOffers, b.MaxConns, b.MaxOffers = all, all, all, all
	p := newPair(t, a, b)
	p.pump()
	for range all {
		p.now = p.now.Add(100 * time.Microsecond)
		_, todo := p.side[0].Offer(p.now, testOffer())
		p.do(0, todo)
	}
	p.take(1)
	looks, lost := 0, 0
	for ; lost < all; looks++ {
		p.now = p.side[1].Deadline()
		p.do(1, p.side[1].Tick(p.now))
		for _, a := range p.take(1) {
			if _, ok := a.(between.Lose); ok {
				lost++
			}
		}
	}
	require.Less(t, looks, 100, "most of them are PINGs")
	require.Less(t, p.now.Sub(t0), time.Minute+time.Second)
}

// TestDeclined: before CONFIRM it is the last word, by either side, and after it the carrier's end.
func TestDeclined(t *testing.T) {
	for _, phase := range phases[:2] {
		for i := range 2 {
			p := greetedPair(t)
			n := phase.to(p)
			p.do(i, p.side[i].Decline(p.now, n, negotiate.ReasonNoMemory))
			require.Equal(t, []between.Action{between.Lose{Number: n, Reason: negotiate.ReasonNoMemory, Remote: true, Over: true}}, p.take(1-i), phase.name)
			for j, c := range p.side {
				p.do(j, c.Left(p.now, n))
				p.do(j, c.Attached(p.now, n))
				require.Empty(t, p.take(j))
			}
		}
	}
	p := greetedPair(t)
	n := phases[3].to(p)
	for i, c := range p.side {
		p.do(i, c.Attached(p.now, n)) // of no use any more
		p.do(i, c.Decline(p.now, n, negotiate.ReasonDeviceFailed))
		p.do(i, c.Where(p.now, n))
		require.Equal(t, []between.Action{between.Ask{Number: n}}, p.take(1-i))
		p.do(i, c.Opened(p.now, n, between.Place{Sent: 3}))
		require.Equal(t, []between.Action{between.TellPlace{Number: n, Place: between.Place{Sent: 3}, Latest: i == 1, Last: true}}, p.take(1-i))
	}
	p.do(1, p.side[1].Exited(p.now, n, 9, 6))
	require.Equal(t, []between.Action{between.PeerEnded{Number: n, Exited: true, Written: 9, Read: 6}}, p.take(0))
}

// TestCrossing: the last word of the server crosses CONFIRM. Its library was never promoted, so nobody uses the carrier.
func TestCrossing(t *testing.T) {
	p := greetedPair(t)
	n := p.answered()
	p.holds[0] = true
	p.do(0, p.side[0].Proved(p.now, n, negotiate.CarrierSoft))
	p.do(0, p.side[0].Attached(p.now, n))
	p.do(1, p.side[1].Decline(p.now, n, negotiate.ReasonClientGone))
	p.holds[0] = false
	p.pump()
	require.Empty(t, p.take(1))
	require.Equal(t, []between.Action{
		between.Carry{Number: n, Carrier: negotiate.CarrierSoft}, between.Lose{Number: n, Reason: negotiate.ReasonClientGone, Remote: true},
	}, p.take(0))
	p.do(0, p.side[0].Left(p.now, n))
	require.Empty(t, p.take(1))
	require.Equal(t, p.now.Add(time.Minute), p.side[0].Deadline(), "nothing is left")
}

// TestDeadlines: what waits in each phase does so for so long, at either side, whatever the other does.
func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		phase, side int
		after       time.Duration
		why         negotiate.Reason
	}{
		{0, 0, 70 * time.Second, negotiate.ReasonHandshakeTimeout},
		{0, 1, 60 * time.Second, negotiate.ReasonNoPeer},
		{1, 0, 10 * time.Second, negotiate.ReasonCarrierUnreachable},
		{1, 1, 20 * time.Second, negotiate.ReasonHandshakeTimeout},
	} {
		p := greetedPair(t)
		p.now = p.now.Add(time.Hour)
		n := phases[c.phase].to(p)
		for begun, i := p.now, c.side; ; {
			due := p.side[i].Deadline()
			require.Positive(t, due.Sub(p.now))
			p.now = due
			p.do(i, p.side[i].Tick(p.now)) // PINGs, too, which the other answers
			if got := p.take(i); len(got) > 0 {
				require.Equal(t, []between.Action{between.Lose{Number: n, Reason: c.why, Over: true}}, got)
				require.Equal(t, c.after, p.now.Sub(begun), "phase %s at side %d", phases[c.phase].name, i)
				break
			}
			require.Less(t, p.now.Sub(begun), c.after)
		}
		require.Equal(t, []between.Action{between.Lose{Number: n, Reason: c.why, Remote: true, Over: true}}, p.take(1-c.side))
	}
}

// TestSilence: three PINGs without an answer, and a second more, and the same where nobody says HELLO.
func TestSilence(t *testing.T) {
	for i := range 2 {
		p := greetedPair(t)
		n := p.promoted()
		p.holds[1-i] = true
		for s := range 3 {
			p.now = p.now.Add(time.Second)
			require.Equal(t, p.now, p.side[i].Deadline())
			p.do(i, p.side[i].Tick(p.now))
			require.Empty(t, p.take(i), s)
			require.Empty(t, p.side[i].Tick(p.now.Add(time.Second-1)))
		}
		p.now = p.now.Add(time.Second)
		p.do(i, p.side[i].Tick(p.now))
		require.Equal(t, []between.Action{between.Lose{Number: n, Reason: negotiate.ReasonPeerDead, Over: true}, between.Closed{Reason: negotiate.ReasonPeerDead}}, p.take(i))
		require.Zero(t, p.side[i].Deadline())
		require.Equal(t, []between.Action{
			between.Lose{Number: n, Reason: negotiate.ReasonPeerDead, Remote: true, Over: true}, between.Closed{Reason: negotiate.ReasonPeerDead, Remote: true},
		}, p.take(1-i))

		c := between.New(config(i), t0)
		require.Equal(t, t0.Add(5*time.Second), c.Deadline())
		c.Receive(t0.Add(3*time.Second), golden.Vector(t, "between-hello")[:60]) // not yet
		require.Empty(t, c.Tick(t0.Add(5*time.Second-1)))
		require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonHandshakeTimeout}}, c.Tick(c.Deadline()))
	}
	p := greetedPair(t) // heard again in time
	p.promoted()
	for range 20 {
		p.tick(time.Second)
	}
	p.side[1].Tick(p.now.Add(time.Second))
	require.Empty(t, append(p.take(0), p.take(1)...))
}

// TestIdle: who offers closes first, and only without a connection.
func TestIdle(t *testing.T) {
	p := greetedPair(t)
	require.Equal(t, t0.Add(time.Minute), p.side[0].Deadline())
	require.Equal(t, t0.Add(90*time.Second), p.side[1].Deadline())
	require.Equal(t, []between.Action{between.Closed{}}, p.side[1].Tick(t0.Add(90*time.Second)))
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		a, b   [2]uint8
		chosen uint8
	}{
		{[2]uint8{1, 1}, [2]uint8{1, 1}, 1},
		{[2]uint8{1, 3}, [2]uint8{2, 5}, 3},
		{[2]uint8{2, 5}, [2]uint8{1, 3}, 3},
		{[2]uint8{1, 1}, [2]uint8{2, 3}, 0},
		{[2]uint8{2, 3}, [2]uint8{1, 1}, 0},
	} {
		a, b := config(0, key), config(1, key)
		a.Hello.MinVersion, a.Hello.MaxVersion = c.a[0], c.a[1]
		b.Hello.MinVersion, b.Hello.MaxVersion = c.b[0], c.b[1]
		p := newPair(t, a, b)
		p.pump()
		if c.chosen == 0 {
			require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonVersion}}, p.take(1))
			require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonVersion, Remote: true}}, p.take(0))
			continue
		}
		require.Equal(t, []between.Action{between.Greeted{Peer: b.Hello}}, p.take(0))
		require.Equal(t, []between.Action{between.Greeted{Peer: a.Hello}}, p.take(1))
		require.Equal(t, c.chosen, p.said[1][5])
		p.offer()
	}
	p := newPair(t, config(0), config(1)) // an answer of a version that was not offered
	b := golden.Vector(t, "between-hello")
	b[5] = 2
	require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonVersion}}, p.side[0].Receive(t0, b))
}

func TestKeys(t *testing.T) {
	other := []byte("another key")
	closed := func(remote bool) []between.Action {
		return []between.Action{between.Closed{Reason: negotiate.ReasonAuthFailed, Remote: remote}}
	}
	for _, c := range []struct {
		a, b [][]byte
		ok   bool
	}{
		{[][]byte{key}, [][]byte{other, key}, true},
		{[][]byte{key, other}, [][]byte{other}, false},
		{[][]byte{key}, nil, false},
		{nil, [][]byte{key}, false},
	} {
		p := newPair(t, config(0, c.a...), config(1, c.b...))
		p.pump()
		if c.ok {
			require.IsType(t, between.Greeted{}, p.take(0)[0])
			continue
		}
		require.Equal(t, closed(true), p.take(0))
		require.Equal(t, closed(false), p.take(1))
	}
}

// TestReplay: a message is worth nothing a second time, in another place, from the other side, on another connection, or
// changed.
func TestReplay(t *testing.T) {
	p := greetedPair(t, key)
	const helloLen = 8 + 6 + 20 + 20 + 36
	p.promoted()
	p.do(0, p.side[0].Attached(p.now, 1))
	require.Len(t, p.take(1), 1)
	said := p.said[0]
	attach := said[len(said)-56:]
	fresh := func() *between.Control { // which has heard all but what is said last
		c := between.New(config(1, key), t0)
		c.Receive(t0, said[:helloLen])
		return c
	}
	echo := greetedPair(t, key)
	n, _ := echo.side[0].Offer(t0, testOffer())
	require.NotZero(t, n)
	for name, c := range map[string]struct {
		to *between.Control
		b  []byte
	}{
		"again":   {p.side[1], attach},
		"skipped": {fresh(), attach},
		"changed": {fresh(), func() []byte { b := bytes.Clone(said[helloLen : len(said)-56]); b[30] ^= 1; return b }()},
		"echoed":  {echo.side[0], bytes.Clone(echo.side[0].Pending())},
		"no mac":  {fresh(), golden.Vector(t, "between-ping")},
	} {
		todo := c.to.Receive(t0, c.b)
		require.NotEmpty(t, todo, name)
		require.Equal(t, between.Closed{Reason: negotiate.ReasonAuthFailed}, todo[len(todo)-1], name)
	}
	elsewhere := config(1, key)
	elsewhere.Local = netip.MustParseAddrPort("10.0.0.3:4790")
	require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonAuthFailed}}, between.New(elsewhere, t0).Receive(t0, said[:helloLen]))
	again := config(1, key) // a recorded conversation, and a gateway that says HELLO afresh
	again.Hello.Random[5]++
	c := between.New(again, t0)
	require.IsType(t, between.Greeted{}, c.Receive(t0, said[:helloLen])[0])
	require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonAuthFailed}}, c.Receive(t0, said[helloLen:]))
	require.IsType(t, between.Find{}, fresh().Receive(t0, said[helloLen:])[0], "the same")
}

// numbered is a vector about another number.
func numbered(t testing.TB, name string, n uint64) []byte {
	b := golden.Vector(t, "between-"+name)
	binary.BigEndian.PutUint64(b[12:], n)
	return b
}

// TestMoves: in every phase a side takes these messages of the other, and no others. Of a number that is over it takes all.
func TestMoves(t *testing.T) {
	takes := [2]map[string]string{ // by side and phase
		{
			"offered": "answer decline", "answered": "decline", "promoted": "decline attached recall where opened ended",
			"gone": "decline attached recall where opened ended",
		},
		{
			"offered": "decline", "answered": "confirm decline", "promoted": "decline attached recall where opened ended",
			"gone": "decline attached recall where opened ended",
		},
	}
	all := []string{"offer", "answer", "confirm", "decline", "attached", "recall", "where", "opened", "ended"}
	for i := range 2 {
		for _, phase := range phases {
			for _, name := range all {
				p := greetedPair(t)
				n := phase.to(p)
				p.got = [2][]between.Action{}
				todo := p.side[i].Receive(p.now, numbered(t, name, n))
				refused := slices.Contains(todo, between.Action(between.Closed{Reason: negotiate.ReasonProtocolError}))
				require.Equal(t, !strings.Contains(takes[i][phase.name], name), refused, "%s at side %d, %s: %v", name, i, phase.name, todo)
			}
		}
	}
	for _, name := range all[1:] {
		for i := range 2 {
			p := greetedPair(t)
			n := p.offer()
			p.do(0, p.side[0].Decline(p.now, n, negotiate.ReasonOff))
			p.take(1)
			require.Empty(t, p.side[i].Receive(p.now, numbered(t, name, n)), name)
			require.NotEmpty(t, p.side[i].Receive(p.now, numbered(t, name, n+1)), "%s of a number to come", name)
		}
	}
}

// TestEarly: what an owner says in a phase, or at a side, that is not for it is not sent.
func TestEarly(t *testing.T) {
	for _, c := range []struct {
		phase, side int
		say         func(c *between.Control, n uint64) []between.Action
	}{
		{0, 0, func(c *between.Control, n uint64) []between.Action { return c.Answer(t0, n, 16, carriers(2)) }},
		{0, 0, func(c *between.Control, n uint64) []between.Action { return c.Proved(t0, n, negotiate.CarrierSoft) }},
		{1, 1, func(c *between.Control, n uint64) []between.Action { return c.Proved(t0, n, negotiate.CarrierSoft) }},
		{1, 0, func(c *between.Control, n uint64) []between.Action { return c.Attached(t0, n) }},
		{1, 1, func(c *between.Control, n uint64) []between.Action { return c.Left(t0, n) }},
		{2, 1, func(c *between.Control, n uint64) []between.Action { return c.Answer(t0, n, 16, carriers(2)) }},
		{2, 0, func(c *between.Control, n uint64) []between.Action { return c.Proved(t0, n, negotiate.CarrierSoft) }},
		{3, 0, func(c *between.Control, n uint64) []between.Action { return c.Proved(t0, n, negotiate.CarrierSoft) }},
	} {
		p := greetedPair(t)
		n := phases[c.phase].to(p)
		require.Empty(t, c.say(p.side[c.side], n))
		require.Empty(t, p.side[c.side].Pending(), "%s at side %d", phases[c.phase].name, c.side)
	}
}

// TestViolations: what else a peer must not say.
func TestViolations(t *testing.T) {
	mixed := carriers(2)
	mixed[1].Mixed = true
	said := func(todo []between.Action) []byte { require.Empty(t, todo); return nil }
	for name, c := range map[string]struct {
		to int
		b  func(p *pair) []byte
	}{
		"HELLO again":         {1, func(*pair) []byte { return golden.Vector(t, "between-hello") }},
		"a PONG for nothing":  {1, func(*pair) []byte { return golden.Vector(t, "between-pong") }},
		"a number left out":   {1, func(*pair) []byte { return numbered(t, "offer", 2) }},
		"a number once more":  {1, func(p *pair) []byte { return numbered(t, "offer", p.promoted()) }},
		"OFFER to the client": {0, func(*pair) []byte { return numbered(t, "offer", 1) }},
		"another version": {1, func(*pair) []byte {
			b := golden.Vector(t, "between-ping")
			b[5] = 2
			return b
		}},
		"a carrier not offered": {0, func(p *pair) []byte {
			return said(p.side[1].Answer(p.now, p.offer(), 16, []negotiate.CarrierOffer{{Kind: negotiate.CarrierSHM, SHM: negotiate.SHMEndpoint{Name: "x"}}}))
		}},
		"a mixed end not offered": {0, func(p *pair) []byte { return said(p.side[1].Answer(p.now, p.offer(), 16, mixed)) }},
		"a carrier not answered":  {1, func(p *pair) []byte { p.side[0].Proved(p.now, p.answered(), negotiate.CarrierHW); return nil }},
		"garbage":                 {1, func(*pair) []byte { return []byte("GET /") }},
	} {
		p := greetedPair(t)
		b := c.b(p)
		p.pump()
		p.do(c.to, p.side[c.to].Receive(p.now, b))
		got := p.take(c.to)
		require.NotEmpty(t, got, name)
		require.Equal(t, between.Closed{Reason: negotiate.ReasonProtocolError}, got[len(got)-1], name)
		got = p.take(1 - c.to)
		require.Equal(t, between.Closed{Reason: negotiate.ReasonProtocolError, Remote: true}, got[len(got)-1], name)
		require.Zero(t, p.side[c.to].Deadline())
	}
	c := between.New(config(1), t0)
	require.Equal(t, []between.Action{between.Closed{Reason: negotiate.ReasonProtocolError}}, c.Receive(t0, golden.Vector(t, "between-ping")), "before HELLO")
}

func TestBounds(t *testing.T) {
	p := greetedPair(t)
	n, todo := between.New(config(0), t0).Offer(t0, testOffer())
	require.Zero(t, n, "before HELLO")
	require.Empty(t, todo)
	n, _ = p.side[1].Offer(t0, testOffer())
	require.Zero(t, n, "by who has not opened")

	p.promoted()
	p.answered()
	p.offer()
	n, _ = p.side[0].Offer(t0, testOffer())
	require.Zero(t, n, "the fourth")
	require.Empty(t, p.side[1].Receive(p.now, numbered(t, "offer", 4)), "by a client that has more")
	require.Equal(t, append(numbered(t, "decline", 4)[:24], byte(negotiate.ReasonFlowLimit)), p.side[1].Pending())

	p = greetedPair(t)
	p.offer()
	p.offer()
	n, _ = p.side[0].Offer(t0, testOffer())
	require.Zero(t, n, "the third that waits")
	p.do(1, p.side[1].Decline(p.now, 1, negotiate.ReasonOff))
	p.take(0)
	p.offer()

	p = greetedPair(t) // an OFFER of what is not known
	b := numbered(t, "offer", 1)
	b[81] = 77
	require.Empty(t, p.side[1].Receive(p.now, b))
	require.Equal(t, append(numbered(t, "decline", 1)[:24], byte(negotiate.ReasonNoCommonCarrier)), p.side[1].Pending())
}

// TestUnsent: a peer that asks and does not read ends the control connection.
func TestUnsent(t *testing.T) {
	p := greetedPair(t)
	p.holds[1] = true
	n := p.offer()
	ask := bytes.Repeat(golden.Vector(t, "between-ping"), 1000)
	for i := 0; ; i++ {
		require.LessOrEqual(t, i, 65<<10/len(ask))
		todo := p.side[1].Receive(p.now, ask)
		require.LessOrEqual(t, len(p.side[1].Pending()), 65<<10)
		if len(todo) > 0 {
			require.Equal(t, []between.Action{between.Lose{Number: n, Reason: negotiate.ReasonStalled, Over: true}, between.Closed{Reason: negotiate.ReasonStalled}}, todo)
			require.Empty(t, p.side[1].Pending())
			break
		}
	}
	require.Empty(t, p.side[1].Receive(p.now, ask))
	require.Empty(t, p.side[1].Close(p.now, negotiate.ReasonDrained))
	require.Empty(t, p.side[1].Broken())
	require.Empty(t, p.side[1].Tick(p.now.Add(time.Hour)))
}

// TestCloseEarly: the reason is believed also when the peer's HELLO was not read.
func TestCloseEarly(t *testing.T) {
	for i := range 2 {
		p := newPair(t, config(0, key), config(1, key))
		p.holds[1-i] = true
		p.do(i, p.side[i].Close(t0, negotiate.ReasonDrained))
		got := p.take(1 - i)
		require.Equal(t, between.Closed{Reason: negotiate.ReasonDrained, Remote: true}, got[len(got)-1], i)
	}
}

func TestClose(t *testing.T) {
	p := greetedPair(t, key)
	a, b := p.promoted(), p.offer()
	p.do(0, p.side[0].Close(p.now, negotiate.ReasonDrained))
	for i := range p.side {
		require.Equal(t, []between.Action{
			between.Lose{Number: a, Reason: negotiate.ReasonDrained, Remote: i == 1, Over: true},
			between.Lose{Number: b, Reason: negotiate.ReasonDrained, Remote: i == 1, Over: true},
			between.Closed{Reason: negotiate.ReasonDrained, Remote: i == 1},
		}, p.take(i))
		require.Empty(t, p.side[i].Left(p.now, a))
	}
}

// FuzzReceive: whatever comes, nothing is hoarded, and everything ends.
func FuzzReceive(f *testing.F) {
	greeting := golden.Vector(f, "between-hello")
	f.Add(append(bytes.Clone(greeting), numbered(f, "offer", 1)...), uint8(5), false)
	f.Add(append(bytes.Clone(greeting), numbered(f, "answer", 1)...), uint8(90), true)
	f.Add(append(bytes.Clone(greeting), golden.Vector(f, "between-ping")...), uint8(1), true)
	f.Fuzz(func(t *testing.T, b []byte, step uint8, opener bool) {
		cfg := config(1)
		cfg.Opener = opener
		c, open := between.New(cfg, t0), map[uint64]bool{}
		end := 0
		act := func(todo []between.Action) {
			for _, a := range todo {
				require.Zero(t, end, "%T after the end", a)
				switch a := a.(type) {
				case between.Greeted:
					if n, _ := c.Offer(t0, testOffer()); n != 0 { // it is not closed already
						require.True(t, opener)
						open[n] = true
					}
				case between.Find:
					open[a.Number] = true
					c.Answer(t0, a.Number, 16, carriers(2))
				case between.Prove:
					c.Proved(t0, a.Number, a.Carriers[0].Kind)
				case between.Lose:
					require.True(t, open[a.Number])
					if a.Over {
						delete(open, a.Number)
					}
				case between.PeerEnded:
					require.True(t, open[a.Number])
					delete(open, a.Number)
				case between.Closed:
					end++
				}
			}
		}
		for len(b) > 0 {
			n := min(int(step)+1, len(b))
			act(c.Receive(t0, b[:n]))
			b = b[n:]
			require.LessOrEqual(t, len(open), cfg.MaxConns)
		}
		for range 100 {
			if due := c.Deadline(); !due.IsZero() {
				act(c.Tick(due))
			}
		}
		require.Equal(t, 1, end)
		require.Empty(t, open)
	})
}
