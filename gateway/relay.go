package gateway

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// relayChunk is the largest DATA record this side sends, and smallChunk what
	// a direction that is idle keeps to read into.
	relayChunk = 64 << 10
	smallChunk = 4 << 10
)

// relay carries a flow by DATA records over the wire leg: the refuge when no
// rdma carrier works, or works any more. Three goroutines: app to wire, wire to
// ring, ring to app. The reader of records never waits for the application, so
// HAVE, END and KEEPALIVE never queue behind it (docs/PROTOCOL.md "Records").
type relay struct {
	f      *flow
	ctx    context.Context
	cancel context.CancelFunc
	from   *departure // nil: the flow began here

	wireMu sync.Mutex // orders records on the wire leg, guards cut and silent
	cut    bool       // a record may have been written in part
	silent bool       // what comes first has not been written yet

	mu       sync.Mutex // guards everything below
	cond     sync.Cond
	err      bool // the flow is ending
	books    ledger
	ring     []byte // received, not yet written to the app
	wireGone bool
	watching *appLeg // pumpApp waits for news, and for a reset of this leg

	started atomic.Bool // its app leg is in its hands
	pushing atomic.Bool // records wait for the wire leg
	stall   stallWatch  // of the one who looks for stalls
}

func newRelay(f *flow) *relay {
	r := &relay{f: f, books: newLedger()}
	r.ctx, r.cancel = context.WithCancel(f.g.ctx)
	r.cond.L = &r.mu
	return r
}

// start begins to relay; rest are the first bytes of the peer's records.
func (r *relay) start(leg *appLeg, rest []byte) {
	r.prepare()
	r.f.g.wg.Add(3)
	go r.fromApp(leg)
	go r.fromWire(negotiate.RecordReader{}, rest)
	go r.toApp(leg)
	r.started.Store(true)
}

// resume goes on where a queue pair was left; shut tells that the application has
// been told that nothing more comes. The caller has one hold on the gateway, which
// is the relay's from here on.
func (r *relay) resume(leg *appLeg, d *departure, shut bool) {
	r.prepare()
	r.wireMu.Lock()
	if n, err := r.f.wire.Write(d.first); err == nil { // at once, if it can be
		d.first = d.first[n:]
	}
	r.silent = len(d.first) > 0
	r.wireMu.Unlock()
	r.mu.Lock()
	d.sent = sync.OnceFunc(d.sent)
	r.from, r.books = d, d.books
	ending := r.err
	r.mu.Unlock()
	if ending { // the flow has ended meanwhile, and stop knew nothing of it
		d.written()
	}
	leg.shut.Store(shut)
	r.f.g.wg.Add(1)
	go r.fromWire(d.reader, d.rest)
	go r.arrive(leg)
}

func (r *relay) prepare() {
	r.f.wire.QuickACK()
	askLeg(r.f.wire)
	_ = r.f.wire.SetUserTimeout(legPatience) // the peer never closes its window
}

// arrive says to the peer where the flow stands and then relays. Whatever the end
// of it, the tail is needed no more.
func (r *relay) arrive(leg *appLeg) {
	defer r.f.g.wg.Done()
	defer r.from.sent()
	defer r.f.contain()
	if !r.arriveFirst() {
		r.lost()
	}
	if leg.forRelay() != nil { // the flow has ended
		return
	}
	r.started.Store(true)
	r.f.g.wg.Add(1)
	go r.toApp(leg)
	r.pumpApp(leg)
}

// arriveFirst writes what comes before all other records.
func (r *relay) arriveFirst() bool {
	r.wireMu.Lock()
	defer r.wireMu.Unlock()
	r.silent = false
	return len(r.from.first) == 0 || r.sendLocked(r.from.first)
}

// stop ends the goroutines; teardown closes what else they wait for. With a
// reason the peer is told, if that can be done at once.
func (r *relay) stop(why negotiate.Reason) {
	if why != negotiate.ReasonNone && r.wireMu.TryLock() {
		if !r.cut && !r.silent {
			_, _ = r.f.wire.Write(negotiate.AppendAbort(nil, why))
		}
		r.cut = true
		r.wireMu.Unlock()
	}
	r.cancel()
	r.mu.Lock()
	r.err = true
	from := r.from
	r.newsLocked()
	r.mu.Unlock()
	if from != nil {
		from.written()
	}
}

// newsLocked wakes who waits for a change of what mu guards.
func (r *relay) newsLocked() {
	r.cond.Broadcast()
	if r.watching != nil {
		r.watching.recall()
	}
}

// watchLocked waits for such news where nobody reads from the application, and for
// its reset, which ends the connection although it has nothing to say.
func (r *relay) watchLocked(leg *appLeg) (reset bool) {
	r.watching = leg
	r.mu.Unlock()
	err := leg.awaitReset()
	r.mu.Lock()
	r.watching = nil
	leg.attend()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !r.err {
		r.cond.Wait() // for the end of the flow, since the leg has ended
	}
	return err == nil && !r.err
}

// outgoing is what the direction to the wire does next.
type outgoing uint8

const (
	stopSending outgoing = iota
	sendTail
	leaveTail // all of the tail was sent
	sendApp
	finishSending // the direction has ended
	abandon       // the application has reset its connection
)

func (r *relay) fromApp(leg *appLeg) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	r.pumpApp(leg)
}

// pumpApp sends what the queue pair had sent and the peer has not got, then what
// the application writes, then END.
func (r *relay) pumpApp(leg *appLeg) {
	var buf []byte
	left := r.from == nil
	for {
		next, offset, room := r.awaitRoom(leg, left)
		switch next {
		case stopSending:
			return
		case sendTail:
			if buf = grown(buf, room); !r.resend(buf, offset, room) {
				return
			}
		case leaveTail:
			left = true
			r.from.sent()
			r.send(negotiate.AppendDemoteDone(nil)) // the peer's memory is needed no more
		case sendApp:
			if buf == nil {
				buf = make([]byte, negotiate.DataHeaderLen+smallChunk)
			}
			n, more := r.forward(leg, buf, room)
			if !more {
				return
			}
			if n == len(buf)-negotiate.DataHeaderLen {
				buf = grown(buf, relayChunk)
			}
		case finishSending:
			r.settle(leg)
			return
		case abandon:
			r.f.abort(negotiate.ReasonNone, false)
			return
		}
	}
}

// grown returns a buffer for header and n bytes of DATA.
func grown(buf []byte, n int) []byte {
	if len(buf) >= negotiate.DataHeaderLen+n {
		return buf
	}
	return make([]byte, negotiate.DataHeaderLen+n)
}

// awaitRoom waits until something is to be done, and says where and how much may
// be sent; left tells that the tail is done with.
func (r *relay) awaitRoom(leg *appLeg, left bool) (next outgoing, offset uint64, room int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		b := &r.books
		room = int(min(b.room(), relayChunk))
		switch {
		case r.err:
			return stopSending, 0, 0
		case !left && b.left():
			return leaveTail, 0, 0
		case left && b.ended, r.wireGone: // in order: otherwise the flow has ended
			return finishSending, 0, 0
		case room > 0 && b.tail():
			return sendTail, b.sent, int(min(uint64(room), b.read-b.sent))
		case room > 0:
			return sendApp, b.sent, room
		}
		if r.watchLocked(leg) {
			return abandon, 0, 0
		}
	}
}

// resend sends up to n bytes of the tail; false: the flow has ended. That the wire leg
// has does not say so: behind both ENDs somebody has to settle the flow.
func (r *relay) resend(buf []byte, offset uint64, n int) bool {
	n = copy(buf[negotiate.DataHeaderLen:negotiate.DataHeaderLen+n], r.from.tail(offset))
	if n == 0 { // the only copy is gone
		r.f.abort(negotiate.ReasonLostBytes, false)
		return false
	}
	r.sendData(buf, n) // if the wire leg is gone, awaitRoom knows
	return true
}

// forward sends what the application writes, or its end; false: the flow has ended.
func (r *relay) forward(leg *appLeg, buf []byte, room int) (n int, more bool) {
	const head = negotiate.DataHeaderLen
	n, err := leg.conn.Read(buf[head:min(len(buf), head+room)])
	r.f.step(faults.Relay)
	if n > 0 {
		r.f.tx.Add(uint64(n))
		if !r.sendData(buf, n) {
			return n, false
		}
	}
	if errors.Is(err, io.EOF) && !leg.wasReset() {
		r.mu.Lock()
		r.books.ended = true
		final := r.books.read
		r.mu.Unlock()
		r.f.to(StateClosing)
		r.send(negotiate.AppendEnd(nil, final)) // if the wire leg is gone, awaitRoom knows
		return n, true
	}
	if err != nil {
		r.f.abort(negotiate.ReasonNone, false)
		return n, false
	}
	return n, true
}

func (r *relay) sendData(buf []byte, n int) bool {
	r.mu.Lock()
	offset := r.books.send(n)
	r.mu.Unlock()
	negotiate.AppendDataHeader(buf[:0], offset, n)
	return r.send(buf[:negotiate.DataHeaderLen+n])
}

// send writes records to the wire leg, which the peer always reads.
func (r *relay) send(b []byte) bool {
	ok := r.write(b)
	if !ok {
		r.lost()
	}
	return ok
}

func (r *relay) write(b []byte) bool {
	r.wireMu.Lock()
	defer r.wireMu.Unlock()
	return r.sendLocked(b)
}

func (r *relay) sendLocked(b []byte) bool {
	if r.cut {
		return false
	}
	r.cut = true // unless all of it is written
	r.pushing.Store(true)
	_, err := r.f.wire.WriteContext(r.ctx, b)
	r.pushing.Store(false)
	r.cut = err != nil
	return !r.cut
}

// fromWire reads records until the wire leg ends.
func (r *relay) fromWire(reader negotiate.RecordReader, rest []byte) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	if !r.parse(&reader, rest) {
		return
	}
	buf := make([]byte, smallChunk)
	for {
		n, err := r.f.wire.ReadContext(r.ctx, buf)
		if err != nil {
			r.lost()
			return
		}
		if !r.parse(&reader, buf[:n]) {
			return
		}
		if n == len(buf) && n < relayChunk {
			buf = make([]byte, relayChunk)
		}
	}
}

func (r *relay) parse(reader *negotiate.RecordReader, b []byte) bool {
	for {
		rec, n, err := reader.Next(b)
		if err != nil {
			r.f.abort(negotiate.ReasonProtocolError, false)
			return false
		}
		b = b[n:]
		if rec.Type == 0 {
			return true
		}
		if why := r.record(rec); why != negotiate.ReasonNone {
			r.f.abort(why, rec.Type == negotiate.RecordAbort)
			return false
		}
		if rec.Type == negotiate.RecordDemoteDone {
			r.from.written()
		}
	}
}

// record acts on one record; another reason than none ends the flow.
func (r *relay) record(rec negotiate.Record) negotiate.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.newsLocked()
	why := r.books.record(rec)
	if why == negotiate.ReasonNone && rec.Type == negotiate.RecordData {
		r.ring = append(r.ring, rec.Payload...)
	}
	return why
}

// toApp writes to the application and reports what it has taken.
func (r *relay) toApp(leg *appLeg) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	var spare []byte
	for {
		b, more := r.awaitData(spare)
		if !more {
			break
		}
		if _, err := leg.conn.Write(b); err != nil {
			r.f.abort(negotiate.ReasonNone, false)
			return
		}
		r.f.rx.Add(uint64(len(b)))
		if have := r.consume(len(b)); have != nil {
			r.send(have) // if the wire leg is gone, awaitData knows whether the flow has ended
		}
		spare = b[:0]
	}
	r.mu.Lock()
	ending, final := r.err, r.books.final
	r.mu.Unlock()
	if ending {
		return
	}
	leg.closeWrite()
	r.f.to(StateClosing)
	if r.send(negotiate.AppendHave(nil, final, 0)) {
		r.mu.Lock()
		r.books.told = true
		r.newsLocked()
		r.mu.Unlock()
	}
}

// awaitData waits for bytes to write; false means the end of the direction, or
// of the flow. spare becomes the next receive buffer.
func (r *relay) awaitData(spare []byte) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ring) == 0 && !r.err && !r.books.delivered() {
		r.cond.Wait()
	}
	if r.err || len(r.ring) == 0 {
		return nil, false
	}
	b := r.ring
	r.ring = spare
	return b, true
}

// settled: both directions are over, as far as this side can know. Callers hold
// mu.
func (r *relay) settled() bool {
	return r.books.taken && (r.books.told || r.wireGone && r.books.delivered())
}

// consume returns a HAVE when enough was taken to be worth one.
func (r *relay) consume(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.books.consume(n) {
		return nil
	}
	return negotiate.AppendHave(nil, r.books.consumed, relayWindow)
}

// lost is the end of the wire leg.
func (r *relay) lost() {
	r.mu.Lock()
	orderly := r.books.lost()
	r.wireGone = true
	r.newsLocked()
	r.mu.Unlock()
	if !orderly {
		r.f.abort(negotiate.ReasonWireReset, true)
	}
}

// settle waits until both directions are over and the application's kernel has
// delivered everything, then completes the flow.
func (r *relay) settle(leg *appLeg) {
	r.mu.Lock()
	reset := false
	for !r.err && !reset && !r.settled() {
		reset = r.watchLocked(leg)
	}
	failed := r.err
	r.mu.Unlock()
	if reset {
		r.f.abort(negotiate.ReasonNone, false)
	}
	if reset || failed {
		return
	}
	if awaitDelivered(r.ctx, leg) && r.f.side == config.SideServer {
		r.awaitReset()
	}
	r.f.complete()
}

// awaitReset gives the client time to reset the wire leg.
func (r *relay) awaitReset() {
	late := time.AfterFunc(serverLinger, func() { r.stop(negotiate.ReasonNone) })
	defer late.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.wireGone && !r.err {
		r.cond.Wait()
	}
}

// awaitDelivered waits until the kernel of the application has taken
// everything from a leg in the hands of Go's poller. Its owner is the
// application: it takes as long as that reads.
func awaitDelivered(ctx context.Context, leg *appLeg) bool {
	pause := time.Millisecond
	for ctx.Err() == nil {
		if leg.delivered() {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
	return false
}
