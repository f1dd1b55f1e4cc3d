package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/internal/fdpass"
)

const (
	// helloWait is how long a client may be connected without sending Hello.
	helloWait = 5 * time.Second
	// ahead is how many records of a client may wait behind one whose decision takes long, up to a second. The sockets
	// of those that wait are already closed.
	ahead = 1024
)

// client is a process's connection to the broker. One goroutine reads its records, another acts on them, in order.
type client struct {
	broker  *Broker
	conn    *net.UnixConn
	raw     syscall.RawConn
	process Process
	effort  *effort
	slab    slab

	// The verdict on its program, and when the scan began. Only for the goroutine that acts on records.
	found  inprocess.Why
	looked time.Time

	// Guarded by the broker's lock.
	member *member
	news   *news         // nil before Hello
	desk   shared.Memory // of the process
	owed   []answer      // for which its socket has no room yet, oldest first

	paying sync.WaitGroup // what sends owed
}

// answer is a record for a client with duplicates of the descriptors that go with it.
type answer struct {
	r   inprocess.Record
	fds []int
}

// protocolError reports something impossible that a client sent. It ends the client.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "client: " + e.what }

// serve serves one client until it ends.
func (b *Broker) serve(ctx context.Context, conn *net.UnixConn) {
	c := &client{broker: b, conn: conn, desk: shared.None}
	defer func() {
		_ = conn.Close()
		c.paying.Wait()
	}()
	var err error
	if c.raw, err = conn.SyscallConn(); err == nil {
		c.process, err = userOf(c.raw)
	}
	if err != nil {
		b.warn("in-process client", "error", err)
		return
	}
	if !b.join(c) {
		b.warn("in-process client refused: too many of its user, or of all", "pid", c.process.PID, "uid", c.process.UID)
		_ = c.post(inprocess.Record{What: inprocess.Deny, Why: inprocess.WhyLimit})
		return
	}
	defer func() { b.leave(c, ctx.Err() != nil) }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	owed := c.effort.spend(func() { c.process.look(c.raw) })
	c.member.cgroup, c.member.room = c.process.Cgroup, c.process.room
	if !wait(ctx, owed) {
		return
	}
	if err := c.read(ctx); err != nil {
		b.warn("in-process client", "error", err, "pid", c.process.PID, "exe", c.process.Exe, "uid", c.process.UID)
	}
}

func (b *Broker) join(c *client) (ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.member, ok = b.core.join(c.process.UID); ok {
		c.member.client = c
		b.clients[c] = struct{}{}
		c.effort = b.effortFor(c.process.UID)
		c.effort.clients++
	}
	return ok
}

// effortFor returns a user's effort. That of a user without clients is kept until its budget is full again, so that
// reconnecting gains nothing. The caller holds the lock.
func (b *Broker) effortFor(uid uint32) *effort {
	e := b.efforts[uid]
	if e == nil {
		maps.DeleteFunc(b.efforts, func(_ uint32, e *effort) bool { return e.rested() })
		e = newEffort()
		b.efforts[uid] = e
	}
	return e
}

// leave releases all that a client has. It does not report promoted ends as ended if it is the broker that ends (over),
// or if the process lives on and has only disconnected from the broker.
func (b *Broker) leave(c *client, over bool) {
	b.mu.Lock()
	tags := make([]uint32, 0, len(c.member.ends))
	for _, e := range c.member.ends {
		tags = append(tags, e.tag)
	}
	last := c.news != nil && b.slabs[c.slab.key] == 1 && c.member.run != nil
	b.mu.Unlock()
	goesOn := len(tags) > 0 && c.process.goesOn()
	said := make([]inprocess.Report, len(tags)) // the slab outlives the process
	for i, tag := range tags {
		said[i], _ = c.slab.report(tag)
	}
	var never ByWhy
	if last {
		c.effort.spend(func() { never = c.slab.never() })
	}
	b.do(func(core *core) []denial {
		for i, tag := range tags {
			core.note(c.member, tag, said[i])
		}
		c.member.run.also(never)
		core.leave(c.member)
		core.ended = slices.DeleteFunc(core.ended, func(e *end) bool { return over || goesOn && e.said.Mapped() })
		delete(b.clients, c)
		c.effort.clients--
		b.forgive(c)
		if c.news != nil {
			if b.slabs[c.slab.key]--; b.slabs[c.slab.key] == 0 {
				delete(b.slabs, c.slab.key)
				delete(b.sentBack, c.slab.key)
			}
			c.desk.Handed()
			b.keep(leftoverOfClient(c.member, c.desk.Kept, c.news.leave()), firstLook)
			c.news, c.desk = nil, shared.None
		}
		return nil
	})
	c.slab.close()
}

// read handles records until the client ends. It returns an error if the client did something wrong.
func (c *client) read(ctx context.Context) error {
	jobs := make(chan job, ahead)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { done <- c.work(ctx, jobs) }()
	err := c.receive(jobs)
	cancel() // the peers of an ended client must not wait for what it still has to ask
	close(jobs)
	err = cmp.Or(<-done, err)
	if err == nil || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return nil // the client has ended meanwhile
	}
	c.broker.mu.Lock()
	c.broker.core.counts.Misbehaved++
	c.broker.mu.Unlock()
	return err
}

// job acts on a record whose descriptors have been dealt with.
type job func(context.Context) error

// receive reads records until the client ends.
func (c *client) receive(jobs chan<- job) error {
	body := make([]byte, inprocess.RecordSize+1) // one byte more, to detect a longer packet
	_ = c.conn.SetReadDeadline(time.Now().Add(helloWait))
	for first := true; ; first = false {
		n, fds, cut, err := fdpass.Receive(c.conn, body)
		if err != nil {
			return nil // it has ended, or said nothing in time
		}
		var j job
		c.effort.spend(func() { j, err = c.take(body[:n], fds, cut) }) // without waiting: a socket must be closed at once
		if err != nil {
			return err
		}
		jobs <- j
		if first {
			_ = c.conn.SetReadDeadline(time.Time{})
		}
	}
}

// work runs jobs until there are no more, or until one fails, which ends the client.
func (c *client) work(ctx context.Context, jobs <-chan job) (err error) {
	for j := range jobs {
		owed := c.effort.spend(func() { err = j(ctx) })
		if err != nil {
			break
		}
		wait(ctx, owed)
	}
	if err != nil {
		_ = c.conn.CloseRead()
	}
	for range jobs { // discard what it sent after that
	}
	return err
}

// wait waits for d. It returns false if ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// files is how many descriptors come with each record that a client sends.
var files = map[inprocess.What]int{inprocess.Hello: 1, inprocess.Ask: 1, inprocess.Socket: 1, inprocess.Closed: 0, inprocess.Count: 0}

// take checks a packet and deals with its descriptors at once: it closes them, or keeps slab and socket. The job does
// the rest.
func (c *client) take(body []byte, fds []int, cut error) (job, error) {
	r, err := inprocess.ParseRecord(body)
	want, fromClient := files[r.What]
	switch {
	case err != nil:
	case errors.Is(cut, fdpass.ErrNoDescriptor) && r.What == inprocess.Ask && c.news != nil: // we ran out of them
		fdpass.CloseFDs(fds)
		c.news.released()
		return func(context.Context) error { return c.refuse(r.Tag, Socket{}, inprocess.WhyLimit) }, nil
	case errors.Is(cut, fdpass.ErrNoDescriptor) && r.What == inprocess.Socket && c.news != nil:
		fdpass.CloseFDs(fds)
		return func(context.Context) error { return c.socket(r, -1) }, nil
	case errors.Is(cut, fdpass.ErrNoDescriptor) && r.What == inprocess.Hello && c.news == nil:
		fdpass.CloseFDs(fds)
		return func(context.Context) error { return c.turnAway(cut, inprocess.WhyLimit) }, nil
	case cut != nil:
		err = cut
	case !fromClient:
		err = &protocolError{"sent " + r.What.String()}
	case len(fds) != want:
		err = &protocolError{fmt.Sprintf("%s with %d files", r.What, len(fds))}
	case r.What != inprocess.Hello && r.What != inprocess.Count && c.news == nil:
		err = &protocolError{r.What.String() + " before hello"}
	}
	if err != nil {
		fdpass.CloseFDs(fds)
		return nil, err
	}
	switch r.What {
	case inprocess.Hello:
		return func(context.Context) error { return nil }, c.hello(r, fds[0])
	case inprocess.Ask:
		return c.ask(r, fds[0])
	case inprocess.Socket:
		return func(context.Context) error { return nil }, c.socket(r, fds[0])
	case inprocess.Closed:
		return func(context.Context) error { return c.closed(r) }, nil
	default:
		return func(context.Context) error { return c.count(r) }, nil
	}
}

// hello takes over the slab and answers with desk and news.
func (c *client) hello(r inprocess.Record, fd int) error {
	if c.news != nil || r.B == 0 || r.B > inprocess.EntriesMax {
		_ = unix.Close(fd)
		return &protocolError{fmt.Sprintf("hello again, or with %d entries", r.B)}
	}
	s, err := newSlab(fd, uint32(r.B))
	if err != nil {
		return err
	}
	if r.A != inprocess.Version {
		s.close()
		return c.post(inprocess.Record{What: inprocess.Deny, Why: inprocess.WhyProtocol})
	}
	n, err := newNews()
	if err == nil {
		var d shared.Memory
		if d, err = shared.NewMemory("smcgw-desk", inprocess.DeskSize, shared.Head(8), 0); err == nil {
			c.slab = s
			return c.welcome(r, n, d)
		}
		n.close()
	}
	s.close()
	return c.turnAway(err, whyOfMemory(err))
}

// turnAway denies a Hello for which there is no room.
func (c *client) turnAway(err error, why inprocess.Why) error {
	c.broker.warn("no room for an in-process client", "error", err)
	return c.post(inprocess.Record{What: inprocess.Deny, Why: why})
}

// welcome answers a Hello, and keeps what the broker needs of what it hands over.
func (c *client) welcome(r inprocess.Record, n *news, d shared.Memory) error {
	b := c.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	n.set(b.core.off, b.sentBack[c.slab.key], b.thresholds, true)
	c.news, c.desk = n, d
	b.slabs[c.slab.key]++
	b.core.joinRun(c.member, r.ID)
	b.core.hello(c.member, uint32(r.B))
	err := c.post(inprocess.Record{What: inprocess.Welcome}, d.Write, n.file)
	shared.Close(&c.desk.Write)
	n.handed()
	return err
}

// whyOfMemory returns the reason for an error in making memory.
func whyOfMemory(err error) inprocess.Why {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return inprocess.WhyLimit
	}
	return inprocess.WhyMemory
}

// ask handles an Ask. It closes the socket before anything can block.
func (c *client) ask(r inprocess.Record, fd int) (job, error) {
	asked := time.Now()
	s, err := examine(fd, Role(r.Side), c.broker.config.Namer)
	_ = unix.Close(fd)
	c.news.released()
	if r.Tag == 0 || inprocess.Index(r.Tag) >= c.member.entries {
		return nil, &protocolError{fmt.Sprintf("ask of tag %#x", r.Tag)}
	}
	s.Before = r.Why
	if err == nil {
		return func(ctx context.Context) error { return c.decide(ctx, r.Tag, s, asked) }, nil
	}
	why := whyOf(err)
	if why == inprocess.WhyProtocol {
		return nil, err
	}
	return func(context.Context) error { return c.refuse(r.Tag, s, why) }, nil
}

// decide asks the policy, then refuses the question or puts it to the core.
func (c *client) decide(ctx context.Context, tag uint32, s Socket, asked time.Time) error {
	why := inprocess.WhyLimit
	if ctx.Err() != nil { // the client has gone
		return nil
	}
	c.effort.look(ctx, func() {
		why = c.broker.selects(Question{c.process, s, func() inprocess.Why { return c.program(asked) }})
	})
	if why != inprocess.WhyNone {
		return c.refuse(tag, s, why)
	}
	c.broker.ask(c.member, tag, s)
	return nil
}

// selects asks the policy, then the scanner.
func (b *Broker) selects(q Question) inprocess.Why {
	b.mu.Lock()
	p := b.policy
	b.mu.Unlock()
	if p != nil {
		if why := p.Select(q); why != inprocess.WhyNone {
			return why
		}
	}
	return q.Program()
}

// program scans the program if it has not been scanned since the question was asked: one scan answers all earlier
// questions.
func (c *client) program(asked time.Time) inprocess.Why {
	switch {
	case c.broker.config.Scanner == nil || c.looked.After(asked):
	case c.process.PID == 0:
		c.found = inprocess.WhyUnseen
	default:
		c.looked, c.found = time.Now(), inprocess.WhyNone
		raw, err := c.broker.config.Scanner.RawCalls(c.process.PID)
		if err != nil {
			c.found = inprocess.WhyUnreadable
		} else if raw {
			c.found = inprocess.WhyRawCalls
		}
	}
	return c.found
}

// refuse denies a question without asking the core.
func (c *client) refuse(tag uint32, s Socket, why inprocess.Why) error {
	c.broker.do(func(core *core) []denial { return core.refuseTag(c.member, tag, s, why) })
	return nil
}

// ask puts a question to the core.
func (b *Broker) ask(m *member, tag uint32, s Socket) {
	var pair *conn
	b.do(func(c *core) (no []denial) {
		pair, no = c.ask(time.Now(), m, tag, s)
		b.seek(m.ends[inprocess.Index(tag)])
		return no
	})
	if pair != nil {
		b.grant(pair)
	}
}

// grant makes the memory of a pair and sends it to both ends or to neither.
func (b *Broker) grant(p *conn) {
	mem, err := newMemories(p.id, p.order)
	b.do(func(c *core) []denial {
		switch {
		case err != nil:
			b.warn("memory of a connection", "error", err)
			return c.undo(p, whyOfMemory(err))
		case !p.paired():
			return c.undo(p, inprocess.WhyNoPeer)
		}
		p.mem, mem = mem, nil
		told := b.hand(p, 0) && b.hand(p, 1)
		p.mem.handed()
		if !told {
			return c.undo(p, inprocess.WhyLimit)
		}
		c.granted(p)
		for _, e := range p.ends { // both are on this host
			b.told(ToldPromoted, e, inprocess.WhyNone)
		}
		return nil
	})
	if mem != nil {
		mem.close()
	}
}

// hand sends one end its memory. Side 0, the end that waited, must go first: it is likelier to have gone.
func (b *Broker) hand(p *conn, side int) bool {
	e, peer := p.ends[side], p.ends[1-side]
	return b.queue(e.of.client, inprocess.Record{
		What: inprocess.Grant, Tag: e.tag, Side: uint32(side), ID: p.id, A: peer.of.number,
	}, p.mem[side].Write, p.mem[1-side].Read, peer.of.client.desk.Read)
}

// queue sends a record without blocking, and counts it in the news page. A program may have asked about thousands of
// connections and not run for a while, so what its socket has no room for is kept until it has. The caller holds the
// lock.
func (b *Broker) queue(c *client, r inprocess.Record, fds ...int) bool {
	if c.news == nil {
		return false
	}
	err := error(unix.EAGAIN) // in order
	if len(c.owed) == 0 {
		err = c.post(r, fds...)
	}
	switch {
	case err == nil:
		c.news.sent()
		return true
	case errors.Is(err, unix.EAGAIN) && b.owe(c, r, fds):
		return true
	case !errors.Is(err, unix.EPIPE):
		b.core.counts.QueueFull++
	}
	return false
}

// owe keeps an answer until the client's socket has room for it. It returns false if the limits allow no more, or if
// there is no descriptor left. The caller holds the lock.
func (b *Broker) owe(c *client, r inprocess.Record, fds []int) bool {
	u := b.core.user(c.member.uid)
	if u.owed >= b.core.limits.Owed || b.owedFiles+len(fds) > b.maxOwedFiles {
		return false
	}
	a := answer{r: r}
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			fdpass.CloseFDs(a.fds)
			return false
		}
		a.fds = append(a.fds, dup)
	}
	u.owed++
	b.owedFiles += len(fds)
	if c.owed = append(c.owed, a); len(c.owed) == 1 {
		c.paying.Go(c.pay)
	}
	return true
}

// pay sends what is owed as soon as the client's socket has room, until nothing is or the client ends.
func (c *client) pay() {
	_ = c.raw.Write(func(uintptr) (done bool) {
		b := c.broker
		b.mu.Lock()
		defer b.mu.Unlock()
		for len(c.owed) > 0 {
			err := c.post(c.owed[0].r, c.owed[0].fds...)
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			b.paid(c)
			switch {
			case err == nil:
				c.news.sent()
			case !errors.Is(err, unix.EPIPE):
				c.hangUp() // it would wait for the answer forever
			}
		}
		return true
	})
}

// paid forgets the oldest answer that a client is owed. The caller holds the lock.
func (b *Broker) paid(c *client) {
	a := c.owed[0]
	if c.owed = c.owed[1:]; len(c.owed) == 0 {
		c.owed = nil
	}
	b.core.user(c.member.uid).owed--
	b.owedFiles -= len(a.fds)
	fdpass.CloseFDs(a.fds)
}

// forgive forgets all that a client is owed. The caller holds the lock.
func (b *Broker) forgive(c *client) {
	for len(c.owed) > 0 {
		b.paid(c)
	}
	b.core.forget(c.member.uid)
}

// hangUp ends the conversation: the client still reads what is queued, and then the end. The caller holds the broker's
// lock.
func (c *client) hangUp() {
	_ = c.conn.CloseRead()
	_ = c.conn.CloseWrite()
	if c.news != nil {
		c.news.sent()
	}
}

// post sends a record without blocking.
func (c *client) post(r inprocess.Record, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	body := r.Append(make([]byte, 0, inprocess.RecordSize))
	var sent error
	err := c.raw.Control(func(fd uintptr) {
		_, sent = unix.SendmsgN(int(fd), body, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("send %s: %w", r.What, err)
	}
	return nil
}

// closed handles a Closed.
func (c *client) closed(r inprocess.Record) error {
	said, ok := c.slab.report(r.Tag)
	if ok = ok && said.ID == r.ID; !ok { // the entry belongs to another end now
		said = inprocess.Report{ID: r.ID}
	}
	said.RxRing, said.TxRing = max(said.RxRing, r.A), max(said.TxRing, r.B)
	c.broker.do(func(core *core) []denial {
		core.note(c.member, r.Tag, said)
		if !core.closed(c.member, r.Tag, r.Why) && ok && said.RxRing+said.TxRing > 0 && c.broker.config.Tell != nil {
			c.broker.config.Tell(ToldEnded, saidEnd(c.process, inprocess.Index(r.Tag), said), r.Why) // of an earlier one
		}
		return nil
	})
	return nil
}

// count answers a question about the client's run.
func (c *client) count(r inprocess.Record) error {
	b := c.broker
	b.mu.Lock()
	b.core.joinRun(c.member, r.ID)
	var ends []*end
	if run := c.member.run; run != nil && run.key.id != r.ID {
		b.mu.Unlock()
		return &protocolError{"count of another run"}
	} else if run != nil && r.Why == inprocess.WhyNone {
		ends = run.ends()
	}
	b.mu.Unlock()
	said := readReports(ends)
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, e := range ends {
		b.core.note(e.of, e.tag, said[i])
	}
	return c.post(b.core.count(c.member, r.Why))
}

// readReports reads what libraries say about ends. It needs no lock: the fields of an end that it reads never change.
func readReports(ends []*end) []inprocess.Report {
	said := make([]inprocess.Report, len(ends))
	for i, e := range ends {
		said[i], _ = e.of.client.slab.report(e.tag)
	}
	return said
}
