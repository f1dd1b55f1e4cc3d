package rsocket

import (
	"errors"
	"net"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// A connection that changes its carrier leaves its queue pair where it stands:
//
//	Leave ──► Tail, ReleaseSent: what the peer has not consumed goes another way
//	     └──► ReleaseRings: the peer writes to the rings no more

// Leave ends the use of the queue pair, which its owner moves to ERR or closes right after it. What the peer sent and was
// not consumed is dropped here: it has to be sent again. Offsets stay as they are. Rings and lists are quarantined until
// [Endpoint.ReleaseRings].
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

// Tail returns the bytes sent from the absolute offset on as far as they lie together: of the send buffer, or of the peer's
// ring where that is the only copy, which needs the queue pair not to be closed. It is empty at [Endpoint.SentOffset] and
// where there is no copy any more, which is before [Endpoint.FreedOffset]. After [Endpoint.Leave] any one goroutine may
// call it.
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

// ReleaseRings frees, after [Endpoint.Leave], what the peer could write to; it cannot any more. It is idempotent and may be
// called by any goroutine.
func (e *Endpoint) ReleaseRings() error { return freeAll(e.exposed()) }

// DetachSent copies, after [Endpoint.Leave], what [Endpoint.Tail] returns of the send buffer, so that [Endpoint.ReleaseSent]
// may be called although it may be sent again. The goroutine that calls Tail calls it.
func (e *Endpoint) DetachSent() {
	if e.sndbuf != nil {
		e.sndbuf.detach()
	}
}

// ReleaseSent frees, after [Endpoint.Leave], what [Endpoint.Tail] returns of the send buffer. It is idempotent and may be
// called by any goroutine.
func (e *Endpoint) ReleaseSent() error { return freeAll(e.unexposed()) }

// exposed is the memory that the peer can write to.
func (e *Endpoint) exposed() []*rmb.Region { return present(e.ring, e.nextRing, e.oldRing, e.control) }

// unexposed is the memory that bytes are sent from.
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
