package rsocket

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// ReadSpan returns the next received bytes as far as they are contiguous, or nothing. The memory stays as it is until
// consumed.
func (e *Endpoint) ReadSpan() []byte { return e.stream.ReadSpan() }

// Consume gives back the first n bytes of ReadSpan, and credits and grants to the peer when they are due. An error is a
// wrong n, or what broke the stream just now; bytes received before a stream broke are consumed without error.
func (e *Endpoint) Consume(n int) error {
	if err := e.stream.Consume(n); err != nil || e.stream.Err() != nil {
		return err
	}
	return e.postControls()
}

// HandleWC handles one completion of the queue pair and returns what it changed. After [EventFailed], delivered once,
// [Endpoint.Err] has the reason.
func (e *Endpoint) HandleWC(wc *verbs.WC) Events {
	if e.closed {
		return 0
	}
	if wc.Status != verbs.WCSuccess {
		e.broken(wc)
		return e.report(0)
	}
	if wc.WRID&RecvID == 0 {
		e.unbound = false
		return e.report(e.stream.Completed(wc.WRID))
	}
	ev, err := e.received(wc)
	if err != nil {
		e.stream.Fail(err)
	}
	return e.report(ev)
}

// broken: behind the end of a stream the queue pair may go down as it likes.
func (e *Endpoint) broken(wc *verbs.WC) {
	if !e.stream.disconnected {
		e.stream.Fail(&CompletionError{Status: wc.Status, Receive: wc.WRID&RecvID != 0})
	}
}

// received handles a message and posts the next receive at once, except behind the peer's last message: its queue pair
// may be in ERR by then.
func (e *Endpoint) received(wc *verbs.WC) (Events, error) {
	if wc.Opcode != verbs.WCRecvRDMAWithImm {
		return 0, &ProtocolError{Violation: ViolationImmediate, Length: wc.ByteLen}
	}
	ev, err := e.stream.Receive(Imm(wc.ImmData), wc.ByteLen)
	if err != nil || e.stream.PeerGone() {
		return ev, err
	}
	if ev.Has(EventProved) && !proved(e.stream.ProbeBytes(int(wc.ByteLen)), e.seed) {
		return 0, ErrProbe
	}
	if err := e.qp.PostRecv(&e.rr); err != nil && !e.stream.disconnected {
		return ev, fmt.Errorf("post receive: %w: %w", ErrConnection, err)
	}
	return ev, nil
}

// report does what any completion can make possible: free the send buffer, post control messages, wake the writer.
func (e *Endpoint) report(ev Events) Events {
	if e.mapper == nil {
		if err := e.sndbuf.ConsumeTo(e.stream.FreedOffset()); err != nil {
			e.stream.Fail(err)
		}
	}
	e.echo()
	if err := e.postControls(); err != nil && !e.reported {
		e.reported = true
		ev |= EventFailed
	}
	if e.starved && e.Blocked() == NotBlocked {
		e.starved = false
		ev |= EventWritable
	}
	return ev
}
