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
	faulty bool // delays beyond what the deadlines allow for, and breaking wires
	broken bool // the wire broke by itself

	c    *Client
	s    *Server
	up   stream // client to server
	down stream

	started     bool
	confirmed   Confirmed
	mishap      bool // something happened that may prevent carrying by RDMA
	appAccepted bool
	connected   bool // the application's connect() has returned, accept() has not
	proven      map[CarrierKind]bool
	rawDial     bool // answered or under way
	reserved    bool // Serve was given out, and neither Carry, Drop nor Abort came since
	everServed  bool // Serve was given out
	strangers   bool // without a key in common
	heard       bool // the server was given bytes

	clientWords, serverWords []MessageType
	records                  []byte // what the server got for its record reader
	clientEnd, serverEnd     int    // Release and Abort actions
}

// stream is one direction of the wire leg: what is sent arrives in order, in pieces, or not at all once it is cut.
type stream struct {
	last time.Time
	cut  bool
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
		if w.connected && w.c.AwaitsApp(w.now) {
			w.client(w.c.AppWaits(w.now))
		}
		w.client(w.c.Tick(w.now))
		w.server(w.s.Tick(w.now))
	}
}

// next returns the earliest event, or -1 when a deadline comes first. Events win: bytes are delivered before Tick.
func (w *world) next() (int, time.Time) {
	best, at := -1, time.Time{}
	for i, e := range w.events {
		if at.IsZero() || e.at.Before(at) || (e.at.Equal(at) && e.order < w.events[best].order) {
			best, at = i, e.at
		}
	}
	for _, d := range []time.Time{w.c.Deadline(), w.s.Deadline()} {
		if !d.IsZero() && (at.IsZero() || d.Before(at)) {
			best, at = -1, d
			if at.Before(w.now) {
				at = w.now
			}
		}
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
	w.after(w.step("client finds out"), func() { w.client(w.c.WireLost(w.now)) })
	w.after(w.step("server finds out"), func() { w.server(w.s.WireLost(w.now)) })
}

// step draws the time of a local step; within 100 ms it is in time for every deadline.
func (w *world) step(what string) time.Duration {
	ms := rapid.IntRange(0, 800).Draw(w.t, what+"_ms")
	w.mishap = w.mishap || ms > 100
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
