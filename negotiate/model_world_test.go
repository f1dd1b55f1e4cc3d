package negotiate

import (
	"bytes"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// world joins a client and a server machine by two ordered byte streams and plays the owners of both: it executes
// actions, answers local steps after drawn times with drawn results, lets the wire break, and keeps what the invariants
// need. Time is virtual; the events are drawn from one rapid bit stream.
type world struct {
	t      *rapid.T
	now    time.Time
	events []event
	order  int

	rtt    time.Duration
	faulty bool // delays beyond what the deadlines allow for, late timers, breaking wires, dying gateways
	broken bool // the wire broke by itself
	died   bool // the server's gateway: its program's connection is reset, its kernel resets the wire leg

	c    *Client
	s    *Server
	cc   clock // of c
	sc   clock
	up   stream // client to server
	down stream

	confirmed   Confirmed
	started     bool // the server has begun, with what came first
	mishap      bool // something happened that may prevent carrying by RDMA
	handed      bool // the application's SYN is with the listener
	appAccepted bool
	appGone     bool // it has given up connecting
	connected   bool // the application's connect() has returned
	proven      map[CarrierKind]bool
	rawDial     bool // answered or under way
	reserved    bool // Serve was given out, and neither Carry, Drop nor Abort came since
	everServed  bool // Serve was given out
	strangers   bool // without a key in common
	heard       bool // the server was given bytes
	owes        int  // bytes of the server's word on the way
	answered    bool // the client has all of them
	dialled     bool
	undone      bool // the dial was given up
	accepts     int  // connections that the program of the server has accepted from its gateway
	cancelled   bool // the client was
	ending      bool // a gateway ends: it waits a while for what the program has accepted
	native      bool // the application connects natively
	silent      bool // because nothing was heard for two seconds

	clientWords, serverWords []MessageType
	records                  []byte // what the server got for its record reader
	clientEnd, serverEnd     int    // Release and Abort actions
}

// stream is one direction of the wire leg: what is sent arrives in order, in pieces, or not at all once it is cut.
type stream struct {
	last time.Time
	cut  bool
}

// clock is that of one gateway: it is off, it drifts, and its timers run late.
type clock struct {
	off, late time.Duration
	percent   int // it gains
}

func (c *clock) at(now time.Time) time.Time {
	return now.Add(c.off + now.Sub(t0)*time.Duration(c.percent)/100)
}

// due returns when a timer runs that is set for a time of this clock; zero: never.
func (c *clock) due(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t0.Add(t.Sub(t0.Add(c.off))*100/time.Duration(100+c.percent) + time.Microsecond + c.late)
}

func (w *world) drawClock(name string) clock {
	c := clock{off: time.Duration(rapid.IntRange(-1000, 1000).Draw(w.t, name+" clock")) * time.Second}
	if w.faulty {
		c.percent = rapid.IntRange(-1, 1).Draw(w.t, name+" gains")
	}
	return c
}

// drawLate makes the next timer of a clock late.
func (w *world) drawLate(c *clock) {
	if c.late = 0; w.faulty && rapid.IntRange(0, 3).Draw(w.t, "late") == 0 {
		c.late = time.Duration(rapid.IntRange(0, 4000).Draw(w.t, "late_ms")) * time.Millisecond
	}
}

type event struct {
	at    time.Time
	order int
	do    func()
}

const modelRecords = "records that follow CONFIRM"

func newWorld(t *rapid.T, faulty bool, confirmed Confirmed) *world {
	var ck, sk Keys
	switch rapid.IntRange(0, 2).Draw(t, "keys") {
	case 1:
		ck, sk = Keys{testKey}, Keys{testKey}
	case 2: // being changed
		ck, sk = Keys{testKey, otherKey}, Keys{otherKey, testKey}
	}
	w := newKeyedWorld(t, ck, sk, testBinding, testBinding)
	w.faulty, w.confirmed = faulty, confirmed
	w.cc, w.sc = w.drawClock("client"), w.drawClock("server")
	return w
}

// newKeyedWorld is a world whose ends have these keys and see the connection so.
func newKeyedWorld(t *rapid.T, ck, sk Keys, cb, sb Binding) *world {
	w := &world{t: t, now: t0, confirmed: ConfirmedYes, proven: map[CarrierKind]bool{}}
	w.rtt = time.Duration(rapid.IntRange(1, 200_000).Draw(t, "rtt_us")) * time.Microsecond
	p := Proposal{Nonce: testNonce, Carriers: []CarrierOffer{{Kind: CarrierSHM, SHM: SHMEndpoint{Name: "x"}}, {
		Kind: CarrierSoft, RoCE: RoCEEndpoint{UDPPort: 4791, MTU: 1024},
	}}}
	if len(ck) > 0 {
		p.Random = [16]byte{1}
	}
	w.c = NewClient(ClientConfig{Keys: ck, Binding: cb}, p)
	w.s = NewServer(ServerConfig{Keys: sk, Binding: sb}, testNonce)
	return w
}

// after runs do after d.
func (w *world) after(d time.Duration, do func()) {
	w.order++
	w.events = append(w.events, event{at: w.now.Add(d), order: w.order, do: do})
}

// run plays until nothing can happen any more.
func (w *world) run() {
	for steps := 0; ; steps++ {
		require.Less(w.t, steps, 5000, "the handshake does not end")
		i, at := w.next()
		if at.IsZero() {
			return
		}
		w.now = at
		if i >= 0 {
			do := w.events[i].do
			w.events = slices.Delete(w.events, i, i+1)
			do()
			continue
		}
		if i == clientTimer {
			w.client(w.c.Tick(w.cc.at(w.now)))
			w.drawLate(&w.cc)
		} else {
			w.server(w.s.Tick(w.sc.at(w.now)))
			w.drawLate(&w.sc)
		}
	}
}

const (
	clientTimer = -1
	serverTimer = -2
)

// next returns the earliest event, or whose timer when that comes first. Events win: bytes are delivered before Tick.
func (w *world) next() (int, time.Time) {
	best, at := -1, time.Time{}
	for i, e := range w.events {
		if at.IsZero() || e.at.Before(at) || (e.at.Equal(at) && e.order < w.events[best].order) {
			best, at = i, e.at
		}
	}
	timers := map[int]time.Time{clientTimer: w.cc.due(w.c.Deadline())}
	if w.started && !w.died {
		timers[serverTimer] = w.sc.due(w.s.Deadline())
	}
	for _, whose := range []int{clientTimer, serverTimer} {
		if d := timers[whose]; !d.IsZero() && (at.IsZero() || d.Before(at)) {
			best, at = whose, d
		}
	}
	if !at.IsZero() && at.Before(w.now) {
		at = w.now
	}
	return best, at
}

// latency draws the one-way time of a piece.
func (w *world) latency() time.Duration {
	d := w.rtt / 2
	if w.faulty && rapid.IntRange(0, 9).Draw(w.t, "stall") == 0 {
		d += time.Duration(rapid.IntRange(0, 3000).Draw(w.t, "stall_ms")) * time.Millisecond
	}
	return d
}

// transmit cuts b into pieces and delivers them in order. The first piece has at least the bytes the guard looks at: a
// message is one write, and no TCP segment size is smaller.
func (w *world) transmit(st *stream, b []byte, deliver func([]byte)) {
	b = bytes.Clone(b)
	for least := guardLen; len(b) > 0; least = 1 {
		n := len(b)
		if n > least && rapid.Bool().Draw(w.t, "cut") {
			n = rapid.IntRange(least, n).Draw(w.t, "piece")
		}
		piece := b[:n]
		b = b[n:]
		w.inOrder(st, func() { deliver(piece) })
	}
}

// inOrder schedules do on a stream, never before what was sent earlier.
func (w *world) inOrder(st *stream, do func()) {
	at := w.now.Add(w.latency())
	if at.Before(st.last) {
		at = st.last
	}
	st.last = at
	w.after(at.Sub(w.now), func() {
		if !st.cut {
			do()
		}
	})
}

// cutWire breaks the wire leg without a word; both ends find out by their own TCP.
func (w *world) cutWire() {
	w.up.cut, w.down.cut, w.broken = true, true, true
	w.after(time.Duration(rapid.IntRange(60, 300).Draw(w.t, "client finds out"))*time.Second, w.clientLoses)
	w.after(time.Duration(rapid.IntRange(60, 300).Draw(w.t, "server finds out"))*time.Second, w.serverLoses)
}

// serverDies ends the server's gateway. What arrives from then on its kernel answers by a reset.
func (w *world) serverDies() {
	w.died, w.reserved = true, false
	w.inOrder(&w.down, w.clientLoses)
}

func (w *world) clientLoses() { w.client(w.c.WireLost(w.cc.at(w.now))) }

func (w *world) serverLoses() {
	if w.started {
		w.server(w.s.WireLost(w.sc.at(w.now)))
	}
}

// step draws the time of a local step; within 50 ms it is in time for every deadline.
func (w *world) step(what string) time.Duration {
	ms := rapid.IntRange(0, 800).Draw(w.t, what+"_ms")
	w.mishap = w.mishap || ms > 50
	return time.Duration(ms) * time.Millisecond
}

// quick draws the time of a local step that goes well.
func (w *world) quick(what string) time.Duration {
	return time.Duration(rapid.IntRange(0, 19).Draw(w.t, what+"_ms")) * time.Millisecond
}

// odds is true once in n, for things that may prevent carrying.
func (w *world) odds(n int, what string) bool {
	bad := rapid.IntRange(1, n).Draw(w.t, what) == 1
	w.mishap = w.mishap || bad
	return bad
}
