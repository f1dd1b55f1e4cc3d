package gateway

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

const (
	// relayWindow is how many bytes a direction of the relay carrier may be
	// ahead of the application that consumes them: the first window of both
	// sides (docs/PROTOCOL.md "Records").
	relayWindow = 256 << 10
	// relayChunk is the largest DATA record this side sends.
	relayChunk = 64 << 10
	// relayUpdate is how much must be consumed before HAVE says so.
	relayUpdate = relayWindow / 4
)

// relay carries a flow by DATA records over the wire leg: the refuge when no
// rdma carrier works. Three goroutines: app to wire, wire to ring, ring to app.
// The reader of records never waits for the application, so HAVE, END and
// KEEPALIVE never queue behind it (docs/PROTOCOL.md "Records").
type relay struct {
	f      *flow
	ctx    context.Context
	cancel context.CancelFunc

	wireMu sync.Mutex // orders records on the wire leg, guards cut
	cut    bool       // a record may have been written in part

	mu   sync.Mutex // guards everything below
	cond sync.Cond
	err  bool // the flow is ending

	sent, allowed      uint64 // own direction: sent, and how far DATA may go
	endSent, endHave   bool
	ring               []byte // received, not yet written to the app
	received, consumed uint64
	reported           uint64 // consumed as of the last HAVE
	endKnown           bool
	final              uint64
	haveSent           bool
	wireGone           bool

	started atomic.Bool // its app leg is in its hands
	pushing atomic.Bool // records wait for the wire leg
	stall   stallWatch  // of the one who looks for stalls
}

func newRelay(f *flow) *relay {
	r := &relay{f: f, allowed: relayWindow}
	r.ctx, r.cancel = context.WithCancel(f.g.ctx)
	r.cond.L = &r.mu
	return r
}

// start begins to relay; rest are the first bytes of the peer's records.
func (r *relay) start(leg *appLeg, rest []byte) {
	r.f.wire.QuickACK()
	askLeg(r.f.wire)
	_ = r.f.wire.SetUserTimeout(legPatience) // the peer never closes its window
	r.f.g.wg.Add(3)
	go r.fromApp(leg)
	go r.fromWire(rest)
	go r.toApp(leg)
	r.started.Store(true)
}

// stop ends the goroutines; teardown closes what else they wait for. With a
// reason the peer is told, if that can be done at once.
func (r *relay) stop(why negotiate.Reason) {
	if why != negotiate.ReasonNone && r.wireMu.TryLock() {
		if !r.cut {
			_, _ = r.f.wire.Write(negotiate.AppendAbort(nil, why))
		}
		r.cut = true
		r.wireMu.Unlock()
	}
	r.cancel()
	r.mu.Lock()
	r.err = true
	r.mu.Unlock()
	r.cond.Broadcast()
}

// fromApp reads the application and sends DATA, then END.
func (r *relay) fromApp(leg *appLeg) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	buf := make([]byte, negotiate.DataHeaderLen+relayChunk)
	for {
		room := r.awaitRoom()
		if room == 0 {
			return
		}
		n, err := leg.conn.Read(buf[negotiate.DataHeaderLen : negotiate.DataHeaderLen+min(room, relayChunk)])
		r.f.step(stepRelay)
		if n > 0 && !r.sendData(buf, n) {
			return
		}
		if errors.Is(err, io.EOF) && !leg.wasReset() {
			r.mu.Lock()
			r.endSent = true
			final := r.sent
			r.mu.Unlock()
			r.f.to(StateClosing)
			r.send(negotiate.AppendEnd(nil, final))
			r.settle(leg)
			return
		}
		if err != nil {
			r.f.abort(negotiate.ReasonNone, false)
			return
		}
	}
}

// awaitRoom waits for the peer's window; 0 means the flow is ending.
func (r *relay) awaitRoom() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.sent == r.allowed && !r.err {
		r.cond.Wait()
	}
	if r.err {
		return 0
	}
	return int(min(r.allowed-r.sent, relayChunk))
}

func (r *relay) sendData(buf []byte, n int) bool {
	r.mu.Lock()
	offset := r.sent
	r.sent += uint64(n)
	r.mu.Unlock()
	r.f.tx.Add(uint64(n))
	negotiate.AppendDataHeader(buf[:0], offset, n)
	return r.send(buf[:negotiate.DataHeaderLen+n])
}

// send writes records to the wire leg, which the peer always reads.
func (r *relay) send(b []byte) bool {
	cut := r.write(b)
	if cut {
		r.lost()
	}
	return !cut
}

func (r *relay) write(b []byte) (cut bool) {
	r.wireMu.Lock()
	defer r.wireMu.Unlock()
	if r.cut {
		return true
	}
	r.cut = true // unless all of it is written
	r.pushing.Store(true)
	_, err := r.f.wire.WriteContext(r.ctx, b)
	r.pushing.Store(false)
	r.cut = err != nil
	return r.cut
}

// fromWire reads records until the wire leg ends.
func (r *relay) fromWire(rest []byte) {
	defer r.f.g.wg.Done()
	defer r.f.contain()
	var reader negotiate.RecordReader
	if !r.parse(&reader, rest) {
		return
	}
	buf := make([]byte, relayChunk)
	for {
		n, err := r.f.wire.ReadContext(r.ctx, buf)
		if err != nil {
			r.lost()
			return
		}
		if !r.parse(&reader, buf[:n]) {
			return
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
		switch {
		case rec.Type == 0:
			return true
		case rec.Type == negotiate.RecordAbort:
			r.f.abort(rec.Reason, true)
			return false
		case !r.record(rec):
			r.f.abort(negotiate.ReasonProtocolError, false)
			return false
		}
	}
}

// record acts on one record; false is a violation.
func (r *relay) record(rec negotiate.Record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.cond.Broadcast()
	switch rec.Type {
	case negotiate.RecordData:
		return r.dataLocked(rec)
	case negotiate.RecordEnd:
		if r.endKnown && r.final != rec.Offset || rec.Offset < r.received {
			return false
		}
		r.endKnown, r.final = true, rec.Offset
	case negotiate.RecordHave:
		if rec.Offset > r.sent {
			return false
		}
		r.allowed = max(r.allowed, rec.Offset+rec.Window)
		r.endHave = r.endHave || r.endSent && rec.Offset == r.sent
	case negotiate.RecordAbort, negotiate.RecordKeepalive:
	case negotiate.RecordDemote, negotiate.RecordDemoteDone:
		return false // nothing to demote: this flow has no queue pair
	}
	return true
}

// dataLocked takes payload; beyond the window or out of order is a violation.
func (r *relay) dataLocked(rec negotiate.Record) bool {
	end := rec.Offset + uint64(len(rec.Payload))
	if rec.Offset != r.received || end > r.reported+relayWindow || r.endKnown && end > r.final {
		return false
	}
	r.ring = append(r.ring, rec.Payload...)
	r.received = end
	return true
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
		if have := r.consume(len(b)); have != nil && !r.send(have) {
			return
		}
		spare = b[:0]
	}
	r.mu.Lock()
	ending, final := r.err, r.final
	r.mu.Unlock()
	if ending {
		return
	}
	leg.closeWrite()
	r.f.to(StateClosing)
	if r.send(negotiate.AppendHave(nil, final, 0)) {
		r.mu.Lock()
		r.haveSent = true
		r.mu.Unlock()
		r.cond.Broadcast()
	}
}

// awaitData waits for bytes to write; false means the end of the direction, or
// of the flow. spare becomes the next receive buffer.
func (r *relay) awaitData(spare []byte) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ring) == 0 && !r.err && !r.delivered() {
		r.cond.Wait()
	}
	if r.err || len(r.ring) == 0 {
		return nil, false
	}
	b := r.ring
	r.ring = spare
	return b, true
}

// delivered: the application has everything the peer sent. Callers hold mu.
func (r *relay) delivered() bool { return r.endKnown && r.consumed == r.final }

// settled: both directions are over, as far as this side can know. Callers hold
// mu.
func (r *relay) settled() bool {
	return r.endHave && (r.haveSent || r.wireGone && r.delivered())
}

// consume returns a HAVE when enough was taken to be worth one.
func (r *relay) consume(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.consumed += uint64(n)
	if r.consumed-r.reported < relayUpdate {
		return nil
	}
	r.reported = r.consumed
	return negotiate.AppendHave(nil, r.consumed, relayWindow)
}

// lost is the end of the wire leg: after END from both sides it is the
// client's goodbye, before it an abort.
func (r *relay) lost() {
	r.mu.Lock()
	orderly := r.endSent && r.endKnown && r.received == r.final
	r.wireGone = true
	r.endHave = r.endHave || orderly
	r.mu.Unlock()
	r.cond.Broadcast()
	if !orderly {
		r.f.abort(negotiate.ReasonWireReset, true)
	}
}

// settle waits until both directions are over and the application's kernel has
// delivered everything, then completes the flow.
func (r *relay) settle(leg *appLeg) {
	r.mu.Lock()
	for !r.err && !r.settled() {
		r.cond.Wait()
	}
	failed := r.err
	r.mu.Unlock()
	if failed {
		return
	}
	if awaitDelivered(r.ctx, leg) && r.f.side == SideServer {
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
