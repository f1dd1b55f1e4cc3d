package between_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/internal/due"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/between"
)

// Two hosts, whose gateways have control connections in both directions; promoted connections with programs that do
// what they like, when they like; TCP connections that end at any byte, which either side may notice or not; clocks that
// run as they like. Whatever happens, both sides agree or nobody uses the carrier for long, what one library says reaches
// the other's mirror and no third, and in the end nothing is left.

type world struct {
	t      *rapid.T
	now    time.Duration
	todo   due.Queue[func()]
	clocks [2]clock
	lines  []*line
	conns  []*promoted
}

// clock is that of a host, and how late it looks at it.
type clock struct {
	zero time.Time
	rate float64
	late time.Duration
}

func (c clock) at(now time.Duration) time.Time {
	return c.zero.Add(time.Duration(float64(now) * c.rate))
}

// due is when the host acts on a deadline.
func (c clock) due(d time.Time) time.Duration {
	return time.Duration(float64(d.Sub(c.zero))/c.rate) + c.late + time.Microsecond
}

func (w *world) after(d time.Duration, do func()) {
	w.todo.Push(w.now+d, do)
}

func (w *world) odds(one int, what string) bool { return rapid.IntRange(1, one).Draw(w.t, what) == 1 }

// step is how long something takes: mostly little, sometimes much.
func (w *world) step(most time.Duration, what string) time.Duration {
	if w.odds(4, what+" slow") {
		return time.Duration(rapid.Int64Range(0, int64(most)).Draw(w.t, what))
	}
	return time.Duration(rapid.Int64Range(0, int64(20*time.Millisecond)).Draw(w.t, what))
}

// line is one control connection: side 0 is at the host that has opened it.
type line struct {
	w       *world
	host    [2]int
	side    [2]*between.Control
	numbers [2]map[uint64]*promoted // that are not over, as each side's owner knows it
	wanted  []*promoted             // until it is greeted
	greeted bool
	closed  [2]bool
	wire    [2]wire // from each side
	ticks   [2]time.Time
	cut     time.Duration // when it was; 0: not
}

// wire is one direction of bytes, which come in order.
type wire struct {
	free time.Duration // when what was sent before is there
	left int           // bytes until it ends; negative: it does not
}

func (w *world) dial(host int) *line {
	l := &line{w: w, host: [2]int{host, 1 - host}, numbers: [2]map[uint64]*promoted{{}, {}}}
	keys := [][]byte(nil)
	if w.odds(2, "keys") {
		keys = [][]byte{key}
	}
	for i := range l.side {
		cfg := config(i, keys...)
		cfg.MaxConns, cfg.MaxOffers = 4, rapid.IntRange(1, 4).Draw(w.t, "offers")
		cfg.Hello.Random = [16]byte{byte(len(w.lines)), byte(i)}
		l.side[i] = between.New(cfg, l.now(i))
		l.wire[i].left = -1
	}
	w.lines = append(w.lines, l)
	l.act(0, nil)
	l.act(1, nil)
	if w.odds(2, "line breaks") {
		w.after(w.step(2*time.Minute, "line breaks"), l.breaks)
	}
	if w.odds(6, "gateway closes") {
		i := rapid.IntRange(0, 1).Draw(w.t, "side")
		w.after(w.step(2*time.Minute, "gateway closes"), func() {
			if !l.closed[i] {
				l.act(i, l.side[i].Close(l.now(i), negotiate.ReasonDrained))
			}
		})
	}
	return l
}

func (l *line) now(i int) time.Time { return l.w.clocks[l.host[i]].at(l.w.now) }

// breaks cuts both directions, each at some byte of what is still to come, and tells either side or not.
func (l *line) breaks() {
	if l.cut != 0 {
		return
	}
	l.cut = max(l.w.now, 1)
	for i := range l.wire {
		l.wire[i].left = rapid.IntRange(0, 300).Draw(l.w.t, "bytes that come through")
		if l.w.odds(2, "told") {
			l.w.after(l.w.step(time.Minute, "told"), func() { l.broken(i) })
		}
	}
}

func (l *line) broken(i int) {
	if !l.closed[i] {
		l.act(i, l.side[i].Broken())
	}
}

// act does what a side was told, sends what it has to say, and has it woken in time.
func (l *line) act(i int, todo []between.Action) {
	for _, a := range todo {
		require.False(l.w.t, l.closed[i], "%T after the end", a)
		l.told(i, a)
	}
	l.write(i)
	if due := l.side[i].Deadline(); due != l.ticks[i] && !due.IsZero() {
		l.ticks[i] = due
		require.False(l.w.t, l.closed[i])
		l.w.after(max(l.w.clocks[l.host[i]].due(due)-l.w.now, 0), func() {
			if l.ticks[i] == due { // it has not moved since
				l.ticks[i] = time.Time{}
				l.act(i, l.side[i].Tick(l.now(i)))
			}
		})
	}
}

func (l *line) write(i int) {
	for len(l.side[i].Pending()) > 0 {
		n := min(rapid.IntRange(1, 400).Draw(l.w.t, "piece"), len(l.side[i].Pending()))
		b := append([]byte(nil), l.side[i].Pending()[:n]...)
		l.side[i].Wrote(n)
		l.transmit(i, b)
	}
}

func (l *line) transmit(i int, b []byte) {
	wire := &l.wire[i]
	wire.free = max(wire.free, l.w.now+l.w.step(500*time.Millisecond, "transit"))
	l.w.after(wire.free-l.w.now, func() {
		if wire.left >= 0 {
			b = b[:min(wire.left, len(b))]
			wire.left -= len(b)
		}
		if len(b) > 0 && !l.closed[1-i] {
			l.act(1-i, l.side[1-i].Receive(l.now(1-i), b))
		}
	})
}

// promoted is a connection: side 0 is that of its client.
type promoted struct {
	w     *world
	id    uint32
	line  *line
	num   uint64
	name  between.Name
	asks  bool // the server's end has asked
	ends  [2]end
	found time.Time // by the server's clock
	kind  negotiate.CarrierKind
}

// end is one of its sides, as its gateway and its library know it.
type end struct {
	found    bool // the number is known here
	carries  bool
	lost     bool // the carrier has ended
	over     bool // the number has
	attached bool // the library has said so
	recalled bool
	opened   bool          // it writes into the ring
	until    time.Duration // it did
	said     uint64
	exited   bool // by the library, that is by exit
}

// begins has a client's gateway want the other end, on the control connection that it has opened.
func (p *promoted) begins(host int) {
	for _, l := range p.w.lines {
		if l.host[0] == host && !l.closed[0] {
			l.offer(p)
			return
		}
	}
	p.w.dial(host).offer(p)
}

func (l *line) offer(p *promoted) {
	if p.line = l; !l.greeted {
		l.wanted = append(l.wanted, p)
		return
	}
	o := testOffer()
	o.Name = p.name
	binary.BigEndian.PutUint32(o.Nonces[0][:], p.id)
	n, todo := l.side[0].Offer(l.now(0), o)
	if n == 0 {
		return
	}
	require.NotContains(l.w.t, l.numbers[0], n)
	l.numbers[0][n], p.num, p.ends[0].found = p, n, true
	l.act(0, todo)
	if l.w.odds(6, "client gives up") {
		l.w.after(l.w.step(90*time.Second, "client gives up"), func() { p.declines(0, negotiate.ReasonClientGone) })
	}
}

// told does what the owner of a side does.
func (l *line) told(i int, a between.Action) {
	w := l.w
	if i == 1 {
		if a, ok := a.(between.Find); ok {
			p := w.conns[binary.BigEndian.Uint32(a.Offer.Nonces[0][:])]
			require.Equal(w.t, p.name, a.Offer.Name)
			require.True(w.t, p.line == l && p.num == a.Number && !p.ends[1].found)
			p.ends[1].found, p.found, l.numbers[1][a.Number] = true, l.now(1), p
			p.answers()
			return
		}
	}
	switch a := a.(type) {
	case between.Greeted:
		if i == 0 {
			l.greeted = true
			w.after(0, l.offerWanted)
		}
	case between.Prove:
		l.conn(i, a.Number).proves(a.Carriers)
	case between.Carry:
		l.conn(i, a.Number).carries(i, a.Carrier)
	case between.Tell:
		p := l.conn(i, a.Number)
		require.True(w.t, p.ends[i].carries && !p.ends[i].lost)
		require.True(w.t, p.ends[1-i].attached || !a.Attached)
		require.True(w.t, p.ends[1-i].recalled || !a.Recall)
		if a.Attached && !a.Recall {
			p.opens(i)
		}
	case between.TellPlace:
		p := l.conn(i, a.Number)
		require.Equal(w.t, uint64(p.id), a.Place.Sent>>32)
		require.LessOrEqual(w.t, a.Place.Sent, p.ends[1-i].said)
		require.True(w.t, p.ends[1-i].opened || !a.Place.Opened)
	case between.Ask:
		p := l.conn(i, a.Number)
		w.after(w.step(time.Second, "answer to ASK"), func() { p.tells(i) })
	case between.PeerEnded:
		p := l.conn(i, a.Number)
		require.True(w.t, p.ends[1-i].carries && p.ends[1-i].over)
		require.Equal(w.t, a.Exited, p.ends[1-i].exited)
		if a.Exited {
			require.Equal(w.t, uint64(p.id), a.Written)
		}
		p.over(i)
	case between.Lose:
		p := l.conn(i, a.Number)
		p.lose(i)
		if a.Over {
			p.over(i)
		}
	case between.Closed:
		l.closed[i] = true
		require.Empty(w.t, l.numbers[i])
		require.Contains(w.t, []negotiate.Reason{
			negotiate.ReasonNone, negotiate.ReasonWireReset, negotiate.ReasonDrained, negotiate.ReasonPeerDead, negotiate.ReasonHandshakeTimeout,
		}, a.Reason, "nobody is misunderstood")
		if a.Reason == negotiate.ReasonPeerDead || a.Reason == negotiate.ReasonHandshakeTimeout {
			require.NotZero(w.t, l.cut)
		}
		l.write(i) // what the peer can still read, and then FIN
		w.after(max(l.wire[i].free-w.now, 0), func() {
			if l.wire[i].left < 0 {
				l.broken(1 - i)
			}
		})
		if l.cut != 0 {
			most := time.Duration(float64(2*time.Minute)/w.clocks[l.host[i]].rate) + time.Minute // of PINGs that come through
			require.LessOrEqual(w.t, w.now-l.cut, most, "known at last")
		}
		if i == 0 {
			l.wanted = nil
		}
	}
}

func (l *line) offerWanted() {
	wanted := l.wanted
	l.wanted = nil
	for _, p := range wanted {
		l.offer(p)
	}
}

// conn is the connection of a number, which is not over.
func (l *line) conn(i int, n uint64) *promoted {
	p := l.numbers[i][n]
	require.NotNil(l.w.t, p, "number %d at side %d", n, i)
	require.True(l.w.t, p.line == l && p.num == n && !p.ends[i].over)
	return p
}

// command has a gateway say something, unless the number is over for it.
func (p *promoted) command(i int, say func(c *between.Control, now time.Time) []between.Action) {
	if e := &p.ends[i]; !e.found || e.over {
		return
	}
	p.line.act(i, say(p.line.side[i], p.line.now(i)))
}

// answers waits for the end to ask.
func (p *promoted) answers() {
	if p.w.odds(4, "never asks") {
		return
	}
	p.w.after(p.w.step(90*time.Second, "asks"), func() {
		if p.w.odds(6, "no memory") {
			p.declines(1, negotiate.ReasonNoMemory)
			return
		}
		p.asks = p.ends[1].found && !p.ends[1].over
		p.command(1, func(c *between.Control, now time.Time) []between.Action {
			p.found = time.Time{}
			return c.Answer(now, p.num, 16, carriers(2)[rapid.IntRange(0, 1).Draw(p.w.t, "carriers"):])
		})
	})
}

func (p *promoted) proves(offered []negotiate.CarrierOffer) {
	require.True(p.w.t, p.asks)
	p.w.after(p.w.step(15*time.Second, "proof"), func() {
		if p.w.odds(6, "not proved") {
			p.declines(0, negotiate.ReasonCarrierUnreachable)
			return
		}
		p.command(0, func(c *between.Control, now time.Time) []between.Action {
			p.kind = offered[rapid.IntRange(0, len(offered)-1).Draw(p.w.t, "proved")].Kind
			return c.Proved(now, p.num, p.kind)
		})
	})
}

func (p *promoted) declines(i int, why negotiate.Reason) {
	p.command(i, func(c *between.Control, now time.Time) []between.Action {
		carried := p.ends[i].carries
		p.lose(i)
		if !carried {
			p.over(i)
		}
		return c.Decline(now, p.num, why)
	})
}

// carries has the library do what it likes from now on, and end.
func (p *promoted) carries(i int, kind negotiate.CarrierKind) {
	e, w := &p.ends[i], p.w
	require.False(w.t, e.carries || e.lost)
	require.Equal(w.t, p.kind, kind)
	require.True(w.t, i == 0 || p.ends[0].carries)
	e.carries = true
	w.after(w.step(time.Second, "attach"), func() {
		p.command(i, func(c *between.Control, now time.Time) []between.Action {
			e.attached = true
			return c.Attached(now, p.num)
		})
	})
	for _, what := range []struct {
		name string
		odds int
		do   func()
	}{
		{"where", 2, func() {
			p.command(i, func(c *between.Control, now time.Time) []between.Action { return c.Where(now, p.num) })
		}},
		{"recall", 4, func() {
			p.command(i, func(c *between.Control, now time.Time) []between.Action {
				e.recalled = true
				return c.Recall(now, p.num)
			})
		}},
		{"carrier fails", 4, func() { p.declines(i, negotiate.ReasonDeviceFailed) }},
	} {
		if w.odds(what.odds, what.name) {
			w.after(w.step(time.Minute, what.name), what.do)
		}
	}
	w.after(w.step(4*time.Minute, "end"), func() {
		p.command(i, func(c *between.Control, now time.Time) []between.Action {
			e.exited = w.odds(2, "exits")
			p.over(i)
			if e.exited {
				return c.Exited(now, p.num, uint64(p.id), 0)
			}
			return c.Left(now, p.num)
		})
	})
}

// opens: the library sees ATTACHED in its mirror, and writes into the ring. Only where both carry does it reach anything.
func (p *promoted) opens(i int) {
	require.True(p.w.t, p.ends[1-i].carries, "one that the other side does not know of")
	p.w.after(p.w.step(time.Second, "opens"), func() {
		e := &p.ends[i]
		if e.over || e.lost {
			return
		}
		e.opened = true
		p.tells(i)
	})
}

// tells where the library is.
func (p *promoted) tells(i int) {
	p.command(i, func(c *between.Control, now time.Time) []between.Action {
		e := &p.ends[i]
		e.said = max(e.said, uint64(p.id)<<32) + 1
		return c.Opened(now, p.num, between.Place{Sent: e.said, Opened: e.opened, At: e.said})
	})
}

func (p *promoted) lose(i int) {
	if e := &p.ends[i]; !e.lost {
		e.lost, e.until = true, p.w.now
	}
}

func (p *promoted) over(i int) {
	p.lose(i)
	p.ends[i].over = true
	delete(p.line.numbers[i], p.num)
	if i == 1 && !p.found.IsZero() { // it has waited in vain
		c := p.w.clocks[p.line.host[1]]
		wait := p.line.now(1).Sub(p.found)
		require.LessOrEqual(p.w.t, wait, time.Minute+time.Duration(float64(c.late+time.Millisecond)*c.rate))
	}
}

// agree: the carrier of one side outlives that of the other by the time that silence takes to be noticed.
func (p *promoted) agree() {
	for i := range p.ends {
		e := &p.ends[i]
		require.True(p.w.t, !e.found || e.over, "side %d of %d", i, p.id)
		require.True(p.w.t, !e.opened || p.ends[1-i].carries)
		if other := &p.ends[1-i]; e.carries && other.found {
			c := p.w.clocks[p.line.host[i]]
			most := time.Duration(float64(4*time.Second)/c.rate) + 5*c.late + 5*time.Second
			require.LessOrEqual(p.w.t, e.until-other.until, most, "it goes on alone")
		}
	}
	require.True(p.w.t, !p.ends[1].carries || p.ends[0].carries)
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t}
		for i := range w.clocks {
			w.clocks[i] = clock{
				zero: t0.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "clock"))),
				rate: rapid.Float64Range(0.5, 2).Draw(t, "rate"),
				late: time.Duration(rapid.Int64Range(0, int64(50*time.Millisecond)).Draw(t, "late")),
			}
		}
		for range rapid.IntRange(1, 8).Draw(t, "connections") {
			p := &promoted{w: w, id: uint32(len(w.conns)), name: testOffer().Name}
			w.conns = append(w.conns, p)
			host := rapid.IntRange(0, 1).Draw(t, "client")
			w.after(w.step(3*time.Minute, "begins"), func() { p.begins(host) })
		}
		for n := 0; w.todo.Len() > 0; n++ {
			require.Less(t, n, 200000)
			w.now, _ = w.todo.Next()
			w.todo.Pop()()
		}
		for _, l := range w.lines {
			for i, c := range l.side {
				require.True(t, l.closed[i])
				require.Zero(t, c.Deadline())
				require.Empty(t, l.numbers[i])
				require.Empty(t, c.Receive(l.now(i), []byte("SMGW")))
			}
		}
		for _, p := range w.conns {
			p.agree()
		}
	})
}
