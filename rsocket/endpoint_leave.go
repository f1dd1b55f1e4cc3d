package rsocket

import (
	"errors"
	"net"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// A connection that changes its carrier leaves its queue pair as it is:
//
//	Leave ──► Tail, ReleaseSent: what the peer has not consumed is resent another way
//	     └──► ReleaseRings: the peer no longer writes to the rings

// Leave ends the use of the queue pair; its owner must then move it to ERR or close it. Bytes that the peer sent and
// that were not consumed are dropped: the peer has to resend them. Offsets stay as they are. Rings and lists are
// quarantined until [Endpoint.ReleaseRings].
func (e *Endpoint) Leave() {
	if e.closed {
		return
	}
	e.closed = true
	e.stream.Fail(net.ErrClosed)
	for _, r := range e.exposed() {
		r.Quarantine()
	}
}

// Tail returns the sent bytes from the absolute offset on, as far as they are contiguous. They are in the send buffer,
// or, where the peer's ring holds the only copy, in that ring, which requires that the queue pair is not closed. Tail
// returns nothing at [Endpoint.SentOffset] and where there is no copy any more, which is before [Endpoint.FreedOffset].
// After [Endpoint.Leave] any one goroutine may call it.
func (e *Endpoint) Tail(offset uint64) []byte {
	if e.mapper == nil {
		return e.sndbuf.at(offset)
	}
	reader, ok := e.qp.(verbs.RemoteReader)
	addr, key, n := e.stream.send.placement(offset)
	if !ok || n == 0 {
		return nil
	}
	b, err := reader.ReadRemote(key, addr, n)
	if err != nil {
		return nil
	}
	return b
}

// ReleaseRings frees, after [Endpoint.Leave], the memory that the peer could write to. The caller must know that the
// peer cannot write there any more. It is idempotent and any goroutine may call it.
func (e *Endpoint) ReleaseRings() error { return freeAll(e.exposed()) }

// DetachSent copies, after [Endpoint.Leave], the bytes of the send buffer that [Endpoint.Tail] returns, so that
// [Endpoint.ReleaseSent] may be called while they may still be resent. Call it on the goroutine that calls Tail.
func (e *Endpoint) DetachSent() {
	if e.sndbuf != nil {
		e.sndbuf.detach()
	}
}

// ReleaseSent frees, after [Endpoint.Leave], the send buffer that [Endpoint.Tail] reads. It is idempotent and any
// goroutine may call it.
func (e *Endpoint) ReleaseSent() error { return freeAll(e.unexposed()) }

// exposed returns the memory that the peer can write to.
func (e *Endpoint) exposed() []*rmb.Region { return present(e.ring, e.nextRing, e.oldRing, e.control) }

// unexposed returns the memory that bytes are sent from.
func (e *Endpoint) unexposed() []*rmb.Region {
	if e.direct == nil {
		return present(e.send)
	}
	return present(e.send, e.direct.Region)
}

func present(regions ...*rmb.Region) (list []*rmb.Region) {
	for _, r := range regions {
		if r != nil {
			list = append(list, r)
		}
	}
	return list
}

func freeAll(regions []*rmb.Region) error {
	var errs []error
	for _, r := range regions {
		errs = append(errs, r.Free())
	}
	return errors.Join(errs...)
}
