package rsocket

import (
	"errors"
	"fmt"
	"net"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

const (
	defaultRing = 256 << 10
	// scratchSize is the size of the memory that control messages are sent from: one entry per control slot.
	scratchSize = ControlSlots * sgeSize
	// pushBytes is how much data is posted before the peer is notified immediately rather than at the end of the turn:
	// holding back more than this delays a bulk consumer, notifying it of less wastes its wake-ups.
	pushBytes = 64 << 10
	// maxSendBuffer bounds the send buffer that we allocate for a large peer ring.
	maxSendBuffer = 4 << 20
	// sendBufferShare is the largest allowed ratio of the peer's ring to the send buffer. Between gateways, credits and
	// grants free the send buffer in steps of up to an eighth of the peer's ring; a buffer of a quarter leaves enough to
	// keep sending meanwhile.
	sendBufferShare = 4
)

// EndpointConfig configures an endpoint; the zero value is for stock peers, with default sizes.
type EndpointConfig struct {
	// Dialect is [Stock] by default.
	Dialect Dialect
	// RingSize is the size of the receive ring; 0 = 256 KiB.
	RingSize int
	// SendBuffer is the size of the send buffer; 0 = the size of the ring that it feeds, at most 4 MiB. Between gateways
	// it must be at least a quarter of the peer's ring. There is no send buffer where the peer's ring can be mapped.
	SendBuffer int
	// Targets is the number of grants the peer may have outstanding; 0 = 16.
	Targets int
	// Credits and SendDepth are as in [Config].
	Credits, SendDepth int
	// IOMaps is the number of slots for memory that the peer offers for direct placement, rounded down as in [IOMapSlots];
	// 0 refuses direct writes by us. With gateways it must be 0.
	IOMaps int
	// Inline is the length up to which data is copied into the work request rather than fetched from the send buffer, at
	// most the device's MaxInline.
	Inline int
	// Ring and Send are the receive ring and the send buffer if the owner provides them, from the endpoint's arena
	// ([rmb.Arena.Borrow]); nil: the endpoint allocates them, with the sizes above. The endpoint owns them from here on,
	// as it owns what it allocates. With Send set, the peer's ring is not mapped.
	Ring, Send *rmb.Region
	// Works are the work requests that the endpoints of one owner loop share; nil: the endpoint has its own.
	Works *Works
}

// Works are the work requests that an endpoint fills in and posts. Devices copy them, so endpoints of one loop can
// share them.
type Works struct {
	send verbs.SendWR
	sge  [1]verbs.SGE
	recv verbs.RecvWR // never modified: endpoints may be made outside of the loop
}

// NewWorks returns the work requests of a loop.
func NewWorks() *Works { return &Works{recv: verbs.RecvWR{WRID: RecvID}} }

func (c EndpointConfig) withDefaults() EndpointConfig {
	if c.Ring != nil {
		c.RingSize = len(c.Ring.Bytes())
	}
	if c.RingSize == 0 {
		c.RingSize = defaultRing
	}
	if c.Targets == 0 {
		c.Targets = MaxTargets
	}
	c.IOMaps = IOMapSlots(c.IOMaps)
	if c.Works == nil {
		c.Works = NewWorks()
	}
	return c
}

// QPCap returns the queue sizes that this endpoint needs from its queue pair. Its completion queues need room for both.
func (c EndpointConfig) QPCap() verbs.QPCap {
	cfg := Config{Credits: c.Credits, SendDepth: c.SendDepth}.withDefaults()
	return verbs.QPCap{
		MaxSendWR: cfg.SendDepth, MaxRecvWR: cfg.RecvDepth(), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: c.Inline,
	}
}

// Endpoint is a stream on a queue pair: the data pump of one connection. Its memory comes from an arena. Only one owner
// loop may use it, the one that polls the queue pair's completion queues. It never blocks or locks, and does not
// allocate once it is connected.
//
// To write, fill a prefix of [Endpoint.WriteSpan], then call [Endpoint.Commit]. If the producer is not the owner, it
// fills the [SendRing] and has the owner call [Endpoint.Pump]. To read, use [Endpoint.ReadSpan], then
// [Endpoint.Consume]. Every completion of the queue pair goes to [Endpoint.HandleWC].
//
// When to try again: after an empty WriteSpan the owner waits for [EventWritable]. The HandleWC that makes the next
// WriteSpan return memory reports it, once per wait, unless [Endpoint.Blocked] says [BlockedClosed], which never ends.
// After an empty ReadSpan the owner waits for [EventReadable], reported by every HandleWC that adds bytes; bytes that
// the owner leaves unread are not reported again. Consume never makes anything writable.
//
// Errors: a method that posts returns [ErrState] if the stream's state does not permit it, and otherwise the error that
// broke the stream: a [*ProtocolError] of the peer, or the loss of the queue pair, which wraps [ErrConnection]. A
// broken stream stays broken, and [Endpoint.Err] keeps the reason.
type Endpoint struct {
	qp     verbs.QP
	mapper verbs.RemoteMapper // nil: send from the send buffer
	arena  *rmb.Arena
	cfg    EndpointConfig
	stream *Stream

	ring, control, send *rmb.Region
	nextRing, oldRing   *rmb.Region   // of a ring exchange: granted after ring; retired and not yet taken by the caller
	sndbuf              *SendRing     // over send; nil where the peer's ring is mapped
	direct              *directBuffer // nil until the first direct write

	seed     uint64    // of the probe in flight
	small    [2]uint64 // the work numbers of the last two small messages, older first
	unpushed int       // bytes since the last SendPush
	ending   ending    // to do once everything produced has been posted
	starved  bool      // the owner saw an empty WriteSpan and waits for EventWritable
	unbound  bool      // the peer's memory cannot be mapped yet; a send completion ends this
	reported bool      // EventFailed was delivered
	closed   bool
}

// NewEndpoint allocates the receiving half from the arena and posts all receives. The queue pair must be in INIT; the
// caller keeps it and its completion queues. It fails with [ErrConfig], with [rmb.ErrNoMemory], or with the error of
// PostRecv; then it keeps nothing and has freed Ring and Send.
func NewEndpoint(qp verbs.QP, arena *rmb.Arena, cfg EndpointConfig) (*Endpoint, error) {
	e := &Endpoint{qp: qp, arena: arena, cfg: cfg.withDefaults(), ring: cfg.Ring, send: cfg.Send}
	if mapper, ok := qp.(verbs.RemoteMapper); ok && cfg.Dialect == Gateway && cfg.Send == nil {
		e.mapper = mapper
	} else {
		e.sndbuf = new(SendRing)
	}
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Release())
	}
	return e, nil
}

func (e *Endpoint) open() error {
	if e.cfg.Targets < StockTargets || e.cfg.Targets > MaxTargets {
		return fmt.Errorf("%d targets: %w", e.cfg.Targets, ErrConfig)
	}
	if e.cfg.Inline < 0 {
		return fmt.Errorf("%d inline bytes: %w", e.cfg.Inline, ErrConfig)
	}
	var err error
	if e.ring == nil {
		if e.ring, err = e.arena.Alloc(e.cfg.RingSize); err != nil {
			return fmt.Errorf("receive ring: %w", err)
		}
	}
	size := e.announceScratch()
	if e.cfg.Dialect == Stock {
		size += announceSlots * iomapSize
	}
	if e.control, err = e.arena.Alloc(size); err != nil {
		return fmt.Errorf("target list: %w", err)
	}
	targets, list := e.cfg.Targets*sgeSize, e.listSize()
	clear(e.control.Bytes()[:list])
	e.stream, err = NewStream(Config{
		Dialect: e.cfg.Dialect,
		Ring:    e.ring.Bytes(), RingAddr: e.ring.Addr(), RingKey: e.ring.RKey(),
		Targets: e.control.Bytes()[:targets:targets], TargetsAddr: e.control.Addr(), TargetsKey: e.control.RKey(),
		IOMaps:  e.control.Bytes()[targets:list:list],
		Credits: e.cfg.Credits, SendDepth: e.cfg.SendDepth, SignalBytes: e.signalBytes(),
		Rings: e.mapper != nil,
	})
	if err != nil {
		return err
	}
	for range e.RecvDepth() {
		if err := e.qp.PostRecv(&e.cfg.Works.recv); err != nil {
			return fmt.Errorf("post receive: %w", err)
		}
	}
	return nil
}

// signalBytes returns how often sends must be signaled, in bytes: with a stock peer, completions free the send buffer,
// and once per quarter of it is often enough.
func (e *Endpoint) signalBytes() int {
	if e.cfg.Dialect == Gateway {
		return 0
	}
	return max(1, e.sendBufferSize(uint32(e.cfg.RingSize))/4)
}

func (e *Endpoint) sendBufferSize(ring uint32) int {
	if e.send != nil {
		return len(e.send.Bytes())
	}
	if e.cfg.SendBuffer != 0 {
		return e.cfg.SendBuffer
	}
	return int(min(ring, maxSendBuffer))
}

// ConnData returns the connection data to send to the peer.
func (e *Endpoint) ConnData() ConnData { return e.stream.ConnData() }

// Connect starts the stream with the peer's connection data. Later calls post messages, so the queue pair must be in
// RTS before the next call that posts; with a gateway that is a probe, data or a shutdown. It fails as [Stream.Connect]
// does, and with [rmb.ErrNoMemory] for the send buffer; either way the stream has failed.
func (e *Endpoint) Connect(peer ConnData) error {
	if err := e.stream.Connect(peer); err != nil {
		return err
	}
	if e.mapper != nil {
		return nil
	}
	if err := e.allocSendBuffer(peer.DataBuf.Length); err != nil {
		e.stream.Fail(err)
		return err
	}
	return nil
}

func (e *Endpoint) allocSendBuffer(peerRing uint32) error {
	size := e.sendBufferSize(uint32(e.cfg.RingSize))
	if e.cfg.Dialect == Gateway {
		size = e.sendBufferSize(peerRing)
	}
	if e.cfg.Dialect == Gateway && uint64(size)*sendBufferShare < uint64(peerRing) {
		return fmt.Errorf("send buffer of %d bytes for a ring of %d: %w", size, peerRing, rmb.ErrNoMemory)
	}
	if e.send == nil {
		var err error
		if e.send, err = e.arena.AllocLocal(size); err != nil {
			return fmt.Errorf("send buffer: %w", err)
		}
	}
	e.sndbuf.init(e.send.Bytes())
	return nil
}

// Start posts what is due right after connecting: with stock peers, the grant of the second half of the ring. Call it
// when the queue pair is in RTS.
func (e *Endpoint) Start() error { return e.postControls() }

// State returns the stream's state.
func (e *Endpoint) State() State { return e.stream.State() }

// Err returns the error that broke the stream, or nil.
func (e *Endpoint) Err() error { return e.stream.Err() }

// SentOffset returns the number of bytes committed.
func (e *Endpoint) SentOffset() uint64 { return e.stream.SentOffset() }

// FreedOffset returns the number of sent bytes that need not be kept any more; see [Stream.FreedOffset].
func (e *Endpoint) FreedOffset() uint64 { return e.stream.FreedOffset() }

// ReceivedOffset returns the number of bytes received.
func (e *Endpoint) ReceivedOffset() uint64 { return e.stream.ReceivedOffset() }

// ConsumedOffset returns the number of received bytes that were consumed.
func (e *Endpoint) ConsumedOffset() uint64 { return e.stream.ConsumedOffset() }

// PeerShut reports whether the peer announced that it will send no more data.
func (e *Endpoint) PeerShut() bool { return e.stream.PeerShut() }

// Settled reports whether the stream is over and the queue pair may be closed.
func (e *Endpoint) Settled() bool { return e.stream.Settled() }

// Placed reports whether every committed byte is known to be in the peer's memory. A later completion tells, at the
// latest that of [Endpoint.Keepalive].
func (e *Endpoint) Placed() bool { return e.stream.placed() }

// Close ends the use of the endpoint; its queue pair must be closed, or in ERR and flushed. Its memory is freed
// immediately if the peer has said that it writes no more; otherwise it is quarantined until [Endpoint.Release]. Close
// is idempotent.
func (e *Endpoint) Close() error {
	if e.closed {
		return nil
	}
	e.retire()
	if e.stream.PeerGone() {
		return e.Release()
	}
	return nil
}

// retire is Close for an owner whose other goroutines may still use the memory: it frees none.
func (e *Endpoint) retire() {
	if e.closed {
		return
	}
	e.closed = true
	e.stream.Fail(net.ErrClosed)
	for _, r := range e.memory() {
		r.Quarantine()
	}
}

// Release frees the memory of a closed endpoint. The caller must know that the peer cannot write to it any more: the
// peer has confirmed the end, or is gone. Release is idempotent and any goroutine may call it after Close returned.
func (e *Endpoint) Release() error {
	return freeAll(e.memory())
}

func (e *Endpoint) memory() []*rmb.Region { return append(e.exposed(), e.unexposed()...) }
