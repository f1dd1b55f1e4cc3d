package broker

import (
	"container/list"
	"fmt"
	"slices"
	"time"

	"github.com/smcgw/smcgw/inprocess"
)

// core decides which ends form a connection and what each may have. It has no clock and does no I/O: callers pass the
// time, and what must be sent is returned as denials and pairs. It is not safe for concurrent use.
type core struct {
	limits  Limits
	off     bool
	nextID  uint64 // of connections and processes; what is above numbers is random, since libraries may know an earlier broker's
	members map[*member]struct{}
	waiting *list.List // of *end, oldest first
	paths   map[path]*end
	names   map[Sequences]*end
	conns   map[uint64]*conn
	held    map[*conn]struct{}   // ended, while a process still has their memory
	left    map[*member]struct{} // have left, while a process still has their memory
	users   map[uint32]*usage
	cgroups map[string]int   // promoted connections of each
	rooms   map[string]int64 // reserved bytes of each cgroup with a room
	runs    map[runKey]*run
	memory  int64 // reserved bytes
	counts  Totals
	others  others

	released []*conn // newly held; the shell handles and empties this and the next three
	halved   []*conn // of whose ends one has ended
	ended    []*end  // that were promoted
	halves   []*end  // that have a half, and news for its Beyond
}

// numbers is how many bits of an ID count.
const numbers = 32

// usage is what one user has in use.
type usage struct {
	members, left, asks, conns, owed int
	memory                           int64
}

// member is a client.
type member struct {
	number  uint64 // identifies the process in a Grant; never 0
	uid     uint32
	cgroup  string
	room    room
	entries uint32          // of its slab; 0 before its Hello
	ends    map[uint32]*end // by entry
	run     *run            // nil: none
	client  *client         // the shell's
}

// end is one end that asked.
type end struct {
	of     *member
	tag    uint32
	socket Socket
	state  endState
	since  time.Time
	conn   *conn            // from pairing on
	said   inprocess.Report // the library's latest report on this connection
	moved  uint64           // ring bytes of both directions; the most that the library has reported
	why    inprocess.Why    // why it ended
	side   uint32
	at     *list.Element // in core.waiting, while it waits
	half   *Half         // the shell's: for the Beyond that looks for the other end on other hosts; nil: none
	cause  Cause         // as Beyond has reported
	closed bool          // its process has said that it has ended
}

// conn is a connection whose ends have been brought together. A nil end is on another host.
type conn struct {
	id       uint64
	ends     [2]*end
	carrier  string // only between hosts
	order    uint32
	reserved int64
	users    []uint32 // charged for it: those of the ends; after release, those whose process still has its memory
	cgroups  []string
	rooms    []string
	mem      *memories // the shell's
}

// denial is a Deny to send to a client about one of its ends.
type denial struct {
	of  *end
	why inprocess.Why
}

// newCore makes a core that numbers connections and processes from first+1.
func newCore(l Limits, first uint64) *core {
	return &core{
		limits: l.withDefaults(), nextID: first, members: map[*member]struct{}{}, waiting: list.New(), paths: map[path]*end{},
		names: map[Sequences]*end{}, conns: map[uint64]*conn{}, held: map[*conn]struct{}{}, left: map[*member]struct{}{}, users: map[uint32]*usage{}, cgroups: map[string]int{}, rooms: map[string]int64{},
		runs: map[runKey]*run{},
	}
}

func (c *core) user(uid uint32) *usage {
	u := c.users[uid]
	if u == nil {
		u = &usage{}
		c.users[uid] = u
	}
	return u
}

// forget drops a user that has nothing in use.
func (c *core) forget(uid uint32) {
	if u := c.users[uid]; u != nil && *u == (usage{}) {
		delete(c.users, uid)
	}
}

// leftOfEach bounds members that have left while a process has their memory: this many for each member that the limits
// allow.
const leftOfEach = 16

// join adds a client. It returns false if a limit is reached.
func (c *core) join(uid uint32) (*member, bool) {
	u := c.user(uid)
	if len(c.members) >= c.limits.Processes || u.members >= c.limits.ProcessesPerUser ||
		len(c.left) >= leftOfEach*c.limits.Processes || u.left >= leftOfEach*c.limits.ProcessesPerUser {
		c.forget(uid)
		c.counts.ProcessesRefused++
		c.counts.Denied[inprocess.WhyLimit]++ // its connections are native without having asked
		return nil, false
	}
	c.counts.ProcessesTotal++
	c.nextID++
	m := &member{number: c.nextID, uid: uid, ends: map[uint32]*end{}}
	c.members[m] = struct{}{}
	c.user(uid).members++
	return m, true
}

// leave removes a client and ends all its ends.
func (c *core) leave(m *member) {
	for _, e := range m.ends {
		c.end(e, evLeft)
	}
	delete(c.members, m)
	c.user(m.uid).members--
	if m.entries > 0 {
		c.left[m] = struct{}{}
		c.user(m.uid).left++
	}
	c.forget(m.uid)
	c.leaveRun(m)
}

// letGo forgets a client that has left, once no process has its memory.
func (c *core) letGo(m *member) {
	delete(c.left, m)
	c.user(m.uid).left--
	c.forget(m.uid)
}

// ask handles a question. It returns a pair to be granted, denials, or neither while the end waits. tag is not 0, and
// its entry is below m.entries.
func (c *core) ask(now time.Time, m *member, tag uint32, s Socket) (pair *conn, no []denial) {
	c.counts.Asks++
	if old := m.ends[inprocess.Index(tag)]; old != nil {
		c.end(old, evReplaced)
	}
	e := &end{of: m, tag: tag, socket: s, since: now}
	no = c.replace(e)
	switch mate := c.mate(e); {
	case c.off:
		return nil, append(no, c.refuse(e, inprocess.WhyOff))
	case s.path() == s.path().mirror():
		return nil, append(no, c.refuse(e, inprocess.WhyNoPeer)) // a socket that is connected to itself
	case mate != nil:
		pair, why := c.pair(mate, e)
		if pair == nil {
			no = append(no, c.refuse(mate, why), c.refuse(e, why))
		}
		return pair, no
	case c.waiting.Len() >= c.limits.Asks || c.user(m.uid).asks >= c.limits.AsksPerUser:
		return nil, append(no, c.refuse(e, inprocess.WhyLimit))
	}
	e.state = e.state.next(evWait)
	m.ends[inprocess.Index(tag)] = e
	e.at = c.waiting.PushBack(e)
	c.paths[s.path()] = e
	if s.Named {
		c.names[s.Sequences] = e
	}
	c.user(m.uid).asks++
	return nil, no
}

// replace drops earlier questions that have the same name as e. The same socket asked from another process is one that
// two processes share.
func (c *core) replace(e *end) (no []denial) {
	olds := []*end{c.paths[e.socket.path()]}
	if e.socket.Named {
		olds = append(olds, c.names[e.socket.Sequences])
	}
	for _, old := range olds {
		if old == nil || old.state != endWaiting {
			continue
		}
		why := inprocess.WhyNoPeer
		if old.socket.Cookie == e.socket.Cookie && old.of != e.of {
			why = inprocess.WhyShared
		}
		c.end(old, evReplaced)
		no = append(no, c.deny(old, why))
	}
	return no
}

// mate finds the waiting other end. Sequence numbers take precedence; addresses decide only if either end has no
// sequence numbers.
func (c *core) mate(e *end) *end {
	if e.socket.Named {
		if m := c.names[e.socket.Sequences.mirror()]; m != nil {
			return m
		}
	}
	m := c.paths[e.socket.path().mirror()]
	if m != nil && m.socket.Named && e.socket.Named {
		return nil
	}
	return m
}

// pair joins two ends, the first of which is waiting. It returns nil and the reason if a limit is reached.
func (c *core) pair(a, b *end) (*conn, inprocess.Why) {
	p := &conn{ends: [2]*end{a, b}}
	if why := c.lacks(a.of, b.of, 0); why != inprocess.WhyNone {
		return nil, why
	}
	var ok bool
	if p.order, p.reserved, ok = reservation(c.remains(a.of, b.of)); !ok {
		return nil, inprocess.WhyMemory
	}
	c.nextID++
	p.id = c.nextID
	c.enter(p)
	return p, inprocess.WhyNone
}

// lacks returns which limit a connection between two members, or of one, would exceed; WhyNone if it would not.
func (c *core) lacks(a, b *member, memory int64) inprocess.Why {
	if len(c.conns)+len(c.held) >= c.limits.Conns {
		return inprocess.WhyLimit
	}
	for _, uid := range distinct(a.uid, b.uid) {
		if c.user(uid).conns >= c.limits.ConnsPerUser {
			return inprocess.WhyLimit
		}
	}
	for _, g := range distinct(a.cgroup, b.cgroup) {
		if c.cgroups[g] >= c.limits.ConnsPerCgroup {
			return inprocess.WhyLimit
		}
	}
	if remains, _ := c.remains(a, b); memory > remains {
		return inprocess.WhyMemory
	}
	return inprocess.WhyNone
}

// remains returns how much memory a connection between two members may reserve, and what its share of that is.
func (c *core) remains(a, b *member) (n, share int64) {
	n = c.limits.Memory - c.memory
	for _, uid := range distinct(a.uid, b.uid) {
		n = min(n, c.limits.MemoryPerUser-c.user(uid).memory)
	}
	share = n / c.limits.Share
	for _, r := range distinct(a.room, b.room) {
		if r != (room{}) {
			left := r.bytes - c.rooms[r.cgroup]
			n, share = min(n, left), min(share, left/c.limits.ShareOfRoom)
		}
	}
	return n, share
}

// pairBeyond joins a waiting end with one on another host. It returns nil and the reason if a limit is reached.
func (c *core) pairBeyond(e *end, id uint64, order uint32) (*conn, inprocess.Why) {
	p := &conn{id: id, order: order, reserved: inprocess.PairSize(order)}
	if why := c.lacks(e.of, e.of, p.reserved); why != inprocess.WhyNone {
		return nil, why
	}
	side := 0
	if e.socket.Role == RoleServer {
		side = 1
	}
	p.ends[side] = e
	c.enter(p)
	return p, inprocess.WhyNone
}

// enter adds a connection and charges it to its ends.
func (c *core) enter(p *conn) {
	for side, e := range p.ends {
		if e == nil {
			continue
		}
		c.unwait(e)
		e.state, e.conn, e.side = e.state.next(evMatch), p, uint32(side)
		e.of.ends[inprocess.Index(e.tag)] = e
		c.newsOf(e)
	}
	c.conns[p.id] = p
	c.pairedRun(p)
	c.memory += p.reserved
	c.charge(p, p.here())
}

// newsOf notes that Beyond must hear about an end, if it looks after it.
func (c *core) newsOf(e *end) {
	if e.half != nil {
		c.halves = append(c.halves, e)
	}
}

// here returns the ends on this host.
func (p *conn) here() []*end {
	switch {
	case p.ends[0] == nil:
		return p.ends[1:]
	case p.ends[1] == nil:
		return p.ends[:1]
	}
	return p.ends[:]
}

// both reports whether both ends are on this host.
func (p *conn) both() bool { return p.ends[0] != nil && p.ends[1] != nil }

// charge charges a connection to the users and cgroups of the given ends, in place of those charged so far.
func (c *core) charge(p *conn, ends []*end) {
	for _, uid := range p.users {
		c.user(uid).conns--
		c.user(uid).memory -= p.reserved
		c.forget(uid)
	}
	for _, g := range p.cgroups {
		if c.cgroups[g]--; c.cgroups[g] == 0 {
			delete(c.cgroups, g)
		}
	}
	for _, r := range p.rooms {
		if c.rooms[r] -= p.reserved; c.rooms[r] == 0 {
			delete(c.rooms, r)
		}
	}
	p.users, p.cgroups, p.rooms = nil, nil, nil
	if len(ends) > 0 {
		a, b := ends[0].of, ends[len(ends)-1].of
		p.users, p.cgroups = distinct(a.uid, b.uid), distinct(a.cgroup, b.cgroup)
		p.rooms = slices.DeleteFunc(distinct(a.room.cgroup, b.room.cgroup), func(g string) bool { return g == "" })
	}
	for _, uid := range p.users {
		c.user(uid).conns++
		c.user(uid).memory += p.reserved
	}
	for _, g := range p.cgroups {
		c.cgroups[g]++
	}
	for _, r := range p.rooms {
		c.rooms[r] += p.reserved
	}
}

func distinct[T comparable](a, b T) []T {
	if a == b {
		return []T{a}
	}
	return []T{a, b}
}

// paired reports whether neither end has gone since the two were matched.
func (p *conn) paired() bool { return p.ends[0].state == endPairing && p.ends[1].state == endPairing }

// granted records that the memory is on its way to both ends.
func (c *core) granted(p *conn) {
	for _, e := range p.here() {
		e.state = e.state.next(evGranted)
	}
	c.counts.Promoted++
	c.promotedRun(p)
}

// undo dissolves a pair that could not be granted.
func (c *core) undo(p *conn, why inprocess.Why) (no []denial) {
	c.counts.Undone++
	for _, e := range p.here() {
		if e.state == endPairing {
			c.end(e, evUndone)
			no = append(no, c.deny(e, why))
		}
	}
	return no
}

// note records a library's report on an end.
func (c *core) note(m *member, tag uint32, said inprocess.Report) {
	if e := m.ends[inprocess.Index(tag)]; e != nil && e.tag == tag && e.conn != nil && e.conn.id == said.ID {
		e.said, e.moved = said, max(e.moved, said.RxRing+said.TxRing)
	} else {
		c.noteOther(said)
	}
}

// noteOther counts what a connection that this broker does not have has moved since its previous report.
func (c *core) noteOther(said inprocess.Report) (more uint64) {
	if said.ID != 0 && c.conns[said.ID] == nil {
		more = c.others.more(said.ID, said.RxRing+said.TxRing)
		c.counts.MovedBytes += more
	}
	return more
}

// closed handles a client's word that one of its ends has ended. It returns false for an unknown tag, which is of an
// end that has already gone.
func (c *core) closed(m *member, tag uint32, why inprocess.Why) (known bool) {
	e := m.ends[inprocess.Index(tag)]
	if e == nil || e.tag != tag {
		c.counts.Strays++
		return false
	}
	if why != inprocess.WhyNone {
		c.wentNative(&c.counts.Returned, e, why)
	}
	e.why, e.closed = why, true
	c.end(e, evClosed)
	return true
}

// expire denies the ends whose wait is over.
func (c *core) expire(now time.Time) (no []denial) {
	for at := c.waiting.Front(); at != nil; at = c.waiting.Front() {
		e := at.Value.(*end)
		if now.Sub(e.since) < c.limits.Wait {
			break
		}
		c.counts.Expired++
		no = append(no, c.refuse(e, inprocess.WhyNoPeer))
	}
	return no
}

// deadline returns when expire next has work; false if no end waits.
func (c *core) deadline() (time.Time, bool) {
	if at := c.waiting.Front(); at != nil {
		return at.Value.(*end).since.Add(c.limits.Wait), true
	}
	return time.Time{}, false
}

// setOff sets the switch. Off denies all waiting ends; promoted ends go back on their own.
func (c *core) setOff(off bool) (no []denial) {
	c.off = off
	for at := c.waiting.Front(); off && at != nil; at = c.waiting.Front() {
		no = append(no, c.refuse(at.Value.(*end), inprocess.WhyOff))
	}
	return no
}

// refuseTag denies a question that was refused before it reached the core.
func (c *core) refuseTag(m *member, tag uint32, s Socket, why inprocess.Why) []denial {
	c.counts.Asks++
	return []denial{c.deny(&end{of: m, tag: tag, socket: s}, why)}
}

// hello records that a client has a slab.
func (c *core) hello(m *member, entries uint32) {
	m.entries = entries
	if m.run != nil {
		m.run.processes++
	}
}

// refuse ends and denies an end.
func (c *core) refuse(e *end, why inprocess.Why) denial {
	c.end(e, evRefused)
	return c.deny(e, why)
}

// deny returns a denial, and counts it if it is news.
func (c *core) deny(e *end, why inprocess.Why) denial {
	if e.hears(why) {
		c.wentNative(&c.counts.Denied, e, why)
	}
	return denial{e, why}
}

// hears reports whether it is news that an end is native for a reason: ends that were denied ask again.
func (e *end) hears(why inprocess.Why) bool { return why != e.socket.Before || e.cause.Tells(why) }

// wentNative counts an end that stays native or goes back: by its cause if that tells more than why, else in by, and by
// why for its run.
func (c *core) wentNative(by *ByWhy, e *end, why inprocess.Why) {
	if e.cause.Tells(why) {
		c.counts.Caused[e.cause.Number]++
	} else {
		by[why]++
	}
	e.of.run.reason(why)
}

// end moves an end to its last state. With the last end of a connection, it releases the connection.
func (c *core) end(e *end, ev endEvent) {
	c.unwait(e)
	if e.state == endWaiting && (ev == evLeft || ev == evClosed && e.why == inprocess.WhyNone) { // it waited in vain
		if e.hears(inprocess.WhyNoPeer) {
			e.of.run.reason(inprocess.WhyNoPeer)
		}
	}
	if e.state == endPromoted {
		if e.why == inprocess.WhyNone && e.said.Why == inprocess.WhyProtocol { // its process ended without a Closed
			e.why = e.said.Why
		}
		c.ended = append(c.ended, e)
	}
	e.state = e.state.next(ev)
	if at := inprocess.Index(e.tag); e.of.ends[at] == e {
		delete(e.of.ends, at)
	}
	c.newsOf(e)
	switch p := e.conn; {
	case p == nil:
	case !slices.ContainsFunc(p.here(), func(e *end) bool { return e.state != endGone }):
		c.release(p)
	default:
		c.halved = append(c.halved, p)
	}
}

// abandoned ends the ends whose memory no process has. A process says only of its own ends that they have ended: one
// that a child took over may end without a word.
func (c *core) abandoned(p *conn, has [2]bool) {
	for side, e := range p.ends {
		if !has[side] && e.state != endGone {
			c.end(e, evClosed)
		}
	}
}

// unwait removes an end from those that wait, if it does.
func (c *core) unwait(e *end) {
	if e.at == nil {
		return
	}
	c.waiting.Remove(e.at)
	e.at = nil
	if p := e.socket.path(); c.paths[p] == e {
		delete(c.paths, p)
	}
	if e.socket.Named && c.names[e.socket.Sequences] == e {
		delete(c.names, e.socket.Sequences)
	}
	c.user(e.of.uid).asks--
}

// release ends a connection whose ends have both gone. It counts against the limits until no process has its memory.
func (c *core) release(p *conn) {
	delete(c.conns, p.id)
	c.held[p] = struct{}{}
	c.releasedRun(p)
	var moved uint64
	for _, e := range p.here() {
		moved = max(moved, e.moved)
	}
	c.counts.MovedBytes += moved
	c.others.set(p.id, moved)
	if slices.ContainsFunc(p.here(), func(e *end) bool { return e.why == inprocess.WhyProtocol }) {
		c.counts.Broken++
	}
	c.released = append(c.released, p)
}

// holds records which files of a released connection are still in use, by side: by the end's process or, of a
// connection between hosts, by this gateway. Once none is, it drops the connection.
func (c *core) holds(p *conn, has [2]bool) {
	var ends []*end
	for side, e := range p.ends {
		if has[side] && e != nil {
			ends = append(ends, e)
		}
	}
	c.charge(p, ends)
	if has == [2]bool{} {
		delete(c.held, p)
		c.memory -= p.reserved
	}
}

// over returns a function that reports whether a connection that this broker had numbered has been released, and no process
// has its memory.
func (c *core) over() func(id uint64) bool {
	last, goOn := c.nextID, make(map[uint64]struct{}, len(c.conns)+len(c.held))
	for id := range c.conns {
		goOn[id] = struct{}{}
	}
	for p := range c.held {
		goOn[p.id] = struct{}{}
	}
	return func(id uint64) bool {
		_, on := goOn[id]
		return !on && id>>numbers == last>>numbers && id <= last
	}
}

// endState is the state of one end that asked.
type endState uint8

const (
	endNew      endState = iota
	endWaiting           // for the other end to ask
	endPairing           // matched; the memory is made and sent
	endPromoted          // the memory is queued to both
	endGone
	endStates
)

var endNames = [endStates]string{"new", "waiting", "pairing", "promoted", "gone"}

func (s endState) String() string { return endNames[s] }

// endEvent is what happens to an end.
type endEvent uint8

const (
	evWait     endEvent = iota // no other end matches yet
	evMatch                    // matched with another end
	evGranted                  // the memory is queued to both
	evUndone                   // the memory could not be queued to both
	evRefused                  // denied: at once, after waiting too long, or by the switch
	evReplaced                 // by a later question for the same socket or entry
	evClosed                   // its process says that it has ended
	evLeft                     // its process has left
	endEvents
)

var eventNames = [endEvents]string{"wait", "match", "granted", "undone", "refused", "replaced", "closed", "left"}

func (e endEvent) String() string { return eventNames[e] }

// endTable has the next state for each state and event. What is missing cannot happen.
var endTable = [endStates]map[endEvent]endState{
	endNew:      {evWait: endWaiting, evMatch: endPairing, evRefused: endGone},
	endWaiting:  {evMatch: endPairing, evRefused: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPairing:  {evGranted: endPromoted, evUndone: endGone, evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endPromoted: {evReplaced: endGone, evClosed: endGone, evLeft: endGone},
	endGone:     {},
}

// next returns the state after an event. It panics on an event that cannot happen; the core checks first.
func (s endState) next(e endEvent) endState {
	to, ok := endTable[s][e]
	if !ok {
		panic(fmt.Sprintf("end %s: %s", s, e))
	}
	return to
}
