package broker

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/inprocess"
)

// TestTotalsAdd: it leaves out no counter.
func TestTotalsAdd(t *testing.T) {
	var one, two Totals
	for i, v := 0, reflect.ValueOf(&one).Elem(); i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Array {
			f.Index(1).SetUint(1)
		} else {
			f.SetUint(1)
		}
	}
	two.Add(&one)
	require.Equal(t, one, two)
}

// TestEndTable: every state but the last one ends in it, and an impossible event is told.
func TestEndTable(t *testing.T) {
	for s := range endStates {
		reached := s == endGone
		for e, to := range endTable[s] {
			require.NotEmpty(t, e.String())
			require.Greater(t, to, s, "%s %s", s, e)
			reached = reached || to == endGone
		}
		require.True(t, reached, s)
	}
	require.Panics(t, func() { endGone.next(evClosed) })
}

// TestRunsOfOneUser: one user's runs leave others theirs.
func TestRunsOfOneUser(t *testing.T) {
	c := newCore(Limits{}, 0)
	for id := uint64(1); ; id++ {
		m, ok := c.join(1)
		if !ok {
			break
		}
		c.joinRun(m, id)
	}
	m, ok := c.join(2)
	require.True(t, ok)
	c.joinRun(m, 1)
	require.NotNil(t, m.run)
	require.Zero(t, c.counts.RunsRefused)
}

func TestReservation(t *testing.T) {
	const share = 64
	least := 2 * inprocess.EndSize(inprocess.OrderMin)
	for _, x := range []struct {
		remains int64
		order   uint32
		ok      bool
	}{
		{1 << 40, inprocess.OrderMax, true},
		{2 * inprocess.EndSize(inprocess.OrderMax) * share, inprocess.OrderMax, true},
		{2*inprocess.EndSize(inprocess.OrderMax)*share - 1, inprocess.OrderMax - 1, true},
		{least, inprocess.OrderMin, true},
		{least - 1, 0, false},
		{0, 0, false},
		{-5, 0, false},
	} {
		order, bytes, ok := reservation(x.remains, x.remains/share)
		require.Equal(t, x.ok, ok, x.remains)
		if ok {
			require.Equal(t, x.order, order, x.remains)
			require.Equal(t, 2*inprocess.EndSize(order), bytes)
			require.True(t, bytes <= x.remains/share || order == inprocess.OrderMin && bytes <= x.remains, x.remains)
		}
	}
}

// TestConnectionsOfOneUser: the memory that the daemon has by default is enough for 20,000 of them.
func TestConnectionsOfOneUser(t *testing.T) {
	l := Limits{Memory: 64 << 30}.withDefaults()
	n := 0
	for left := l.MemoryPerUser; n < l.ConnsPerUser; n++ {
		_, bytes, ok := reservation(left, left/l.Share)
		if !ok {
			break
		}
		left -= bytes
	}
	require.Greater(t, n, 20000)
}

// The model of the core: TCP connections between sockets, each of which a process may ask for.

// modelEnd is what the model expects of one question.
type modelEnd struct {
	m      *member
	tag    uint32
	socket Socket
	state  endState
	since  time.Time
	conn   *modelConn
}

type modelConn struct {
	c    *conn
	ends [2]*modelEnd
	has  [2]bool // memory of it
}

// charged are the processes that it counts for.
func (c *modelConn) charged() (of []*member) {
	for side, e := range c.ends {
		if c.has[side] {
			of = append(of, e.m)
		}
	}
	return of
}

type model struct {
	core  *core
	now   time.Time
	procs []*member
	ends  []*modelEnd // not gone
	conns []*modelConn
	held  []*modelConn // that have ended
	left  []*member
	off   bool
	next  uint32
}

func modelLimits() Limits {
	return Limits{
		Processes: 6, ProcessesPerUser: 4, Asks: 5, AsksPerUser: 4, Conns: 4, ConnsPerUser: 3, ConnsPerCgroup: 3, Runs: 2,
		Memory: 4 * inprocess.EndSize(inprocess.OrderMin+1), MemoryPerUser: 3 * inprocess.EndSize(inprocess.OrderMin+1), Share: 2, ShareOfRoom: 2, Wait: time.Minute,
	}
}

// socketOf makes a socket: few connections, so that ends meet. Sequence numbers are behind a translation: addresses
// of the two ends differ.
func socketOf(conn int, side int, translated, named bool) Socket {
	a, b := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(conn)}), 1000), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(conn)}), 80)
	s := Socket{Local: a, Remote: b, Netns: 1, Cookie: uint64(conn*2 + side + 1)}
	if side == 1 {
		s.Local, s.Remote = b, a
		if translated {
			s.Local, s.Netns = netip.AddrPortFrom(b.Addr(), 8080), 2
		}
	}
	if s.Named = named; named {
		s.Sequences = Sequences{uint32(conn), uint32(conn + 1000)}
		if side == 1 {
			s.Sequences = s.Sequences.mirror()
		}
	}
	return s
}

// mirrors tells whether two sockets are the ends of one connection.
func mirrors(a, b Socket) bool {
	if a.Named && b.Named {
		return a.Sequences.Mine == b.Sequences.Peer && a.Sequences.Peer == b.Sequences.Mine
	}
	return a.Netns == b.Netns && a.Local == b.Remote && a.Remote == b.Local
}

func (m *model) gone(e *modelEnd) {
	e.state = endGone
	for i, other := range m.ends {
		if other == e {
			m.ends = append(m.ends[:i:i], m.ends[i+1:]...)
			break
		}
	}
	if c := e.conn; c != nil && c.ends[0].state == endGone && c.ends[1].state == endGone {
		for i, other := range m.conns {
			if other == c {
				m.conns = append(m.conns[:i:i], m.conns[i+1:]...)
				m.held = append(m.held, c)
				break
			}
		}
	}
}

// HaveMemory is when other processes than before have memory of a connection that has ended.
func (m *model) HaveMemory(t *rapid.T) {
	if len(m.held) == 0 {
		t.Skip("nothing is held")
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "held")
	c := m.held[i]
	c.has = [2]bool{rapid.Bool().Draw(t, "one"), rapid.Bool().Draw(t, "other")}
	m.core.holds(c.c, c.has)
	if c.has == [2]bool{} {
		m.held = slices.Delete(m.held, i, i+1)
	}
}

func (m *model) LetGo(t *rapid.T) {
	if len(m.left) == 0 {
		t.Skip("none has left")
	}
	i := rapid.IntRange(0, len(m.left)-1).Draw(t, "left")
	m.core.letGo(m.left[i])
	m.left = slices.Delete(m.left, i, i+1)
}

// said takes in denials: each is of an end that asked.
func (m *model) said(t *rapid.T, no []denial) {
	for _, d := range no {
		for _, e := range append([]*modelEnd{}, m.ends...) {
			if e.m == d.of.of && e.tag == d.of.tag {
				if e.state == endPromoted {
					t.Fatalf("denied a promoted end: %v", d.why)
				}
				m.gone(e)
			}
		}
	}
}

func (m *model) Join(t *rapid.T) {
	uid := rapid.Uint32Range(0, 2).Draw(t, "uid")
	of := 0
	for _, p := range m.procs {
		if p.uid == uid {
			of++
		}
	}
	left := 0
	for _, p := range m.left {
		if p.uid == uid {
			left++
		}
	}
	p, ok := m.core.join(uid)
	if want := len(m.procs) < 6 && of < 4 && len(m.left) < 6*leftOfEach && left < 4*leftOfEach; ok != want {
		t.Fatalf("join: %v, not %v", ok, want)
	}
	if !ok {
		return
	}
	p.cgroup = []string{"/a", "/b"}[rapid.IntRange(0, 1).Draw(t, "cgroup")]
	p.room = []room{{}, {"/r", 5 * inprocess.EndSize(inprocess.OrderMin)}}[rapid.IntRange(0, 1).Draw(t, "room")]
	id := rapid.Uint64Range(0, 4).Draw(t, "run")
	before, after := rapid.Bool().Draw(t, "joins before"), rapid.Bool().Draw(t, "joins after")
	if before {
		m.core.joinRun(p, id)
	}
	m.core.hello(p, 8)
	if after {
		m.core.joinRun(p, id)
	}
	m.procs = append(m.procs, p)
}

func (m *model) proc(t *rapid.T) *member {
	if len(m.procs) == 0 {
		t.Skip("no process")
	}
	return rapid.SampledFrom(m.procs).Draw(t, "process")
}

func (m *model) Ask(t *rapid.T) {
	p := m.proc(t)
	m.next++
	tag := m.next<<inprocess.IndexBits | rapid.Uint32Range(0, 7).Draw(t, "index")
	translated := rapid.Bool().Draw(t, "translated")
	s := socketOf(rapid.IntRange(0, 3).Draw(t, "connection"), rapid.IntRange(0, 1).Draw(t, "side"), translated, translated || rapid.Bool().Draw(t, "named"))
	if s.Named && rapid.IntRange(0, 7).Draw(t, "proxied") == 0 {
		s.Sequences.Mine += 5000 // the addresses fit, the connection is another
	}
	m.ask(t, p, tag, s)
}

// AskBoth asks for both ends of a connection, from any processes.
func (m *model) AskBoth(t *rapid.T) {
	conn, named := rapid.IntRange(4, 9).Draw(t, "connection"), rapid.Bool().Draw(t, "named")
	for side := range 2 {
		p := m.proc(t)
		m.next++
		m.ask(t, p, m.next<<inprocess.IndexBits|rapid.Uint32Range(0, 7).Draw(t, "index"), socketOf(conn, side, named, named))
	}
}

// full tells whether a limit forbids another question, or another pair.
func (m *model) full(p *member, mate *modelEnd) (inprocess.Why, uint32) {
	l := modelLimits()
	waiting, mine := 0, 0
	for _, e := range m.ends {
		if e.state == endWaiting {
			waiting++
			if e.m.uid == p.uid {
				mine++
			}
		}
	}
	if mate == nil {
		if waiting >= l.Asks || mine >= l.AsksPerUser {
			return inprocess.WhyLimit, 0
		}
		return inprocess.WhyNone, 0
	}
	total, remains := 0, l.Memory
	for _, c := range slices.Concat(m.conns, m.held) {
		total++
		remains -= c.c.reserved
	}
	full := total >= l.Conns
	for _, other := range []*member{p, mate.m} {
		users, cgroups, left := 0, 0, l.MemoryPerUser
		for _, c := range slices.Concat(m.conns, m.held) {
			of := c.charged()
			if slices.ContainsFunc(of, func(p *member) bool { return p.uid == other.uid }) {
				users++
				left -= c.c.reserved
			}
			if slices.ContainsFunc(of, func(p *member) bool { return p.cgroup == other.cgroup }) {
				cgroups++
			}
		}
		full = full || users >= l.ConnsPerUser || cgroups >= l.ConnsPerCgroup
		remains = min(remains, left)
	}
	share := remains / l.Share
	for _, other := range []*member{p, mate.m} {
		if other.room == (room{}) {
			continue
		}
		left := other.room.bytes
		for _, c := range slices.Concat(m.conns, m.held) {
			if slices.ContainsFunc(c.charged(), func(p *member) bool { return p.room == other.room }) {
				left -= c.c.reserved
			}
		}
		remains, share = min(remains, left), min(share, left/l.ShareOfRoom)
	}
	order, _, ok := reservation(remains, share)
	switch {
	case full:
		return inprocess.WhyLimit, 0
	case !ok:
		return inprocess.WhyMemory, 0
	}
	return inprocess.WhyNone, order
}

func (m *model) ask(t *rapid.T, p *member, tag uint32, s Socket) {
	for _, e := range append([]*modelEnd{}, m.ends...) { // what this question replaces
		if e.m == p && inprocess.Index(e.tag) == inprocess.Index(tag) {
			m.gone(e)
		}
	}
	for _, e := range append([]*modelEnd{}, m.ends...) {
		same := e.socket.path() == s.path() || e.socket.Named && s.Named && e.socket.Sequences == s.Sequences
		if e.state == endWaiting && same {
			m.gone(e)
		}
	}
	var mate *modelEnd
	for _, e := range m.ends {
		if e.state == endWaiting && mirrors(e.socket, s) && (mate == nil || e.socket.Named && s.Named) { // sequence numbers go before addresses
			mate = e
		}
	}
	why, order := m.full(p, mate)
	if m.off {
		why = inprocess.WhyOff
	}
	pair, no := m.core.ask(m.now, p, tag, s)
	m.said(t, no)
	denied := false
	for _, d := range no {
		if d.of.of == p && d.of.tag == tag {
			denied = true
			if d.why != why {
				t.Fatalf("denied for %s, not %s", d.why, why)
			}
		}
	}
	if denied != (why != inprocess.WhyNone) || pair != nil && pair.order != order {
		t.Fatalf("denied %v, expected %s; %+v, expected order %d", denied, why, pair, order)
	}
	e := &modelEnd{m: p, tag: tag, socket: s, since: m.now}
	switch {
	case denied:
		if pair != nil {
			t.Fatal("denied and paired")
		}
	case m.off:
		t.Fatal("not denied though off")
	case pair != nil:
		if mate == nil || !mirrors(pair.ends[0].socket, pair.ends[1].socket) {
			t.Fatalf("paired %+v with %+v", pair.ends[0].socket, pair.ends[1].socket)
		}
		for _, other := range m.ends {
			if other.m == pair.ends[0].of && other.tag == pair.ends[0].tag {
				mate = other
			}
		}
		c := &modelConn{pair, [2]*modelEnd{mate, e}, [2]bool{true, true}}
		e.state, mate.state, e.conn, mate.conn = endPairing, endPairing, c, c
		m.ends, m.conns = append(m.ends, e), append(m.conns, c)
	default:
		if mate != nil && mate.state == endWaiting {
			t.Fatalf("%+v did not meet %+v", s, mate.socket)
		}
		e.state = endWaiting
		m.ends = append(m.ends, e)
	}
}

// Grant ends the pairing of a connection, well or not.
func (m *model) Grant(t *rapid.T) {
	for _, c := range m.conns {
		if c.ends[0].state != endPairing && c.ends[1].state != endPairing {
			continue
		}
		whole := c.ends[0].state == endPairing && c.ends[1].state == endPairing
		if c.c.paired() != whole {
			t.Fatal("paired", whole)
		}
		if whole && rapid.Bool().Draw(t, "granted") {
			m.core.granted(c.c)
			c.ends[0].state, c.ends[1].state = endPromoted, endPromoted
			return
		}
		no := m.core.undo(c.c, inprocess.WhyLimit)
		for _, e := range c.ends {
			if e.state == endPairing {
				found := false
				for _, d := range no {
					found = found || d.of.of == e.m && d.of.tag == e.tag
				}
				if !found {
					t.Fatal("undone and not told")
				}
			}
		}
		m.said(t, no)
		return
	}
	t.Skip("nothing is paired")
}

func (m *model) Close(t *rapid.T) {
	if len(m.ends) == 0 {
		t.Skip("no end")
	}
	e := rapid.SampledFrom(m.ends).Draw(t, "end")
	m.core.note(e.m, e.tag, inprocess.Report{ID: rapid.Uint64Range(0, 9).Draw(t, "id"), RxRing: rapid.Uint64().Draw(t, "moved")})
	m.core.closed(e.m, e.tag, inprocess.Why(rapid.IntRange(0, inprocess.WhyCount-1).Draw(t, "why")))
	m.gone(e)
}

func (m *model) CloseStray(t *rapid.T) {
	m.core.closed(m.proc(t), rapid.Uint32Range(1, 200).Draw(t, "tag")|1<<31, inprocess.WhyNone)
}

func (m *model) Leave(t *rapid.T) {
	p := m.proc(t)
	m.core.leave(p)
	for i, other := range m.procs {
		if other == p {
			m.procs = append(m.procs[:i:i], m.procs[i+1:]...)
			m.left = append(m.left, p)
			break
		}
	}
	for _, e := range append([]*modelEnd{}, m.ends...) {
		if e.m == p {
			m.gone(e)
		}
	}
}

func (m *model) Switch(t *rapid.T) {
	m.off = !m.off
	m.said(t, m.core.setOff(m.off))
	for _, e := range m.ends {
		if m.off && e.state == endWaiting {
			t.Fatal("waits though off")
		}
	}
}

func (m *model) Later(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 50).Draw(t, "seconds")) * time.Second)
	m.said(t, m.core.expire(m.now))
	for _, e := range m.ends {
		if e.state == endWaiting && m.now.Sub(e.since) >= time.Minute {
			t.Fatal("waits for too long")
		}
	}
}

// Check compares all that the core keeps with the model.
func (m *model) Check(t *rapid.T) {
	waiting, conns, runs := 0, 0, map[runKey]int{}
	var memory int64
	users, cgroups, rooms := map[uint32]usage{}, map[string]int{}, map[string]int64{}
	add := func(uid uint32, f func(*usage)) {
		u := users[uid]
		f(&u)
		users[uid] = u
	}
	for _, p := range m.procs {
		add(p.uid, func(u *usage) { u.members++ })
		if p.run != nil {
			runs[p.run.key]++
		}
	}
	for _, e := range m.ends {
		if e.state == endWaiting {
			waiting++
			add(e.m.uid, func(u *usage) { u.asks++ })
		}
		if got := e.m.ends[inprocess.Index(e.tag)]; got == nil || got.tag != e.tag || got.state != e.state {
			t.Fatalf("end %#x: %+v, not %s", e.tag, got, e.state)
		}
	}
	for _, p := range m.procs {
		mine := 0
		for _, e := range m.ends {
			if e.m == p {
				mine++
			}
		}
		if len(p.ends) != mine {
			t.Fatalf("a process has %d ends, not %d", len(p.ends), mine)
		}
	}
	for _, p := range m.left {
		add(p.uid, func(u *usage) { u.left++ })
	}
	for _, c := range slices.Concat(m.conns, m.held) {
		conns++
		memory += c.c.reserved
		of := c.charged()
		first, last := of[0], of[len(of)-1]
		for _, uid := range distinct(first.uid, last.uid) {
			add(uid, func(u *usage) { u.conns++; u.memory += c.c.reserved })
		}
		for _, g := range distinct(first.cgroup, last.cgroup) {
			cgroups[g]++
		}
		if first.room.cgroup != "" || last.room.cgroup != "" {
			rooms["/r"] += c.c.reserved
		}
	}
	have := map[uint32]usage{}
	for uid, u := range m.core.users {
		have[uid] = *u
	}
	refs := map[runKey]int{}
	for key, r := range m.core.runs {
		if r.processes != runs[key] { // all have slabs
			t.Fatalf("run %v: %d processes, not %d", key, r.processes, runs[key])
		}
		refs[key] = r.refs
	}
	l := modelLimits()
	named := 0
	for _, e := range m.ends {
		if e.state == endWaiting && e.socket.Named {
			named++
		}
	}
	switch {
	case !maps.Equal(users, have):
		t.Fatalf("users: %+v, not %+v", have, users)
	case !maps.Equal(cgroups, m.core.cgroups):
		t.Fatalf("cgroups: %v, not %v", m.core.cgroups, cgroups)
	case !maps.Equal(rooms, m.core.rooms):
		t.Fatalf("rooms: %v, not %v", m.core.rooms, rooms)
	case !maps.Equal(runs, refs):
		t.Fatalf("runs: %v, not %v", refs, runs)
	case len(m.core.conns)+len(m.core.held) != conns, len(m.core.held) != len(m.held), len(m.core.left) != len(m.left), m.core.memory != memory, m.core.waiting.Len() != waiting, len(m.core.paths) != waiting, len(m.core.names) != named:
		t.Fatal(fmt.Sprint("tables: ", len(m.core.conns), conns, m.core.memory, memory, m.core.waiting.Len(), waiting, len(m.core.paths), len(m.core.names), named))
	case conns > l.Conns || waiting > l.Asks || memory > l.Memory || len(runs) > l.Runs:
		t.Fatal("more than the limits")
	}
	for _, c := range m.held { // of which others may have had the memory before
		for _, p := range c.charged() {
			add(p.uid, func(u *usage) { u.conns--; u.memory -= c.c.reserved })
		}
		if slices.ContainsFunc(c.charged(), func(p *member) bool { return p.room != (room{}) }) {
			rooms["/r"] -= c.c.reserved
		}
	}
	if rooms["/r"] > 5*inprocess.EndSize(inprocess.OrderMin) {
		t.Fatalf("%d bytes in a room", rooms["/r"])
	}
	for _, u := range users {
		if u.asks > l.AsksPerUser || u.conns > l.ConnsPerUser || u.memory > l.MemoryPerUser {
			t.Fatalf("a user has more than the limits: %+v", u)
		}
	}
	if at, ok := m.core.deadline(); ok != (waiting > 0) || ok && at.Sub(m.now) > time.Minute {
		t.Fatal("deadline", at, ok)
	}
	m.core.released = m.core.released[:0]
	m.core.ended = m.core.ended[:0]
}

func TestModel(t *testing.T) {
	check := func(t *rapid.T) {
		m := &model{core: newCore(modelLimits(), 7), now: time.Unix(1000, 0)}
		t.Repeat(map[string]func(*rapid.T){
			"": m.Check, "join": m.Join, "ask": m.Ask, "ask too": m.Ask, "ask both": m.AskBoth, "both again": m.AskBoth, "and again": m.AskBoth, "grant": m.Grant, "close": m.Close, "stray": m.CloseStray, "leave": m.Leave,
			"switch": m.Switch, "later": m.Later, "have memory": m.HaveMemory, "let go": m.LetGo, "let go again": m.HaveMemory,
		})
	}
	for range 20 {
		rapid.Check(t, check)
	}
}
