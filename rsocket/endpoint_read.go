package rsocket

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// ReadSpan returns the next received bytes as far as they are contiguous, or nothing. The memory does not change until
// it is consumed.
func (e *Endpoint) ReadSpan() []byte { return e.stream.ReadSpan() }

// Consume frees the first n bytes of ReadSpan, and sends credits and grants to the peer when they are due. It fails if
// n is too large or if posting broke the stream; bytes received before a stream broke are consumed without error.
func (e *Endpoint) Consume(n int) error {
	err := e.stream.Consume(n)
	e.retireRing()
	if err != nil || e.stream.Err() != nil {
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

// broken handles a failed completion. Posted receives have no memory, so a length error on one means that a message
// came by SEND.
func (e *Endpoint) broken(wc *verbs.WC) {
	receive := wc.WRID&RecvID != 0
	if receive && wc.Status == verbs.WCLocLenErr && !e.stream.disconnected {
		e.stream.Fail(&ProtocolError{Violation: ViolationMessageMode})
		return
	}
	if e.stream.Err() == nil {
		e.stream.Lose(&CompletionError{Status: wc.Status, Receive: receive})
		return
	}
	e.stream.Lose(nil) // keep the first error
}

// received handles a message and posts the next receive immediately, except after the peer's last message: the queue
// pair may be in ERR by then.
func (e *Endpoint) received(wc *verbs.WC) (Events, error) {
	if wc.Opcode != verbs.WCRecvRDMAWithImm {
		return 0, &ProtocolError{Violation: ViolationMessageMode, Length: wc.ByteLen}
	}
	ev, err := e.stream.Receive(Imm(wc.ImmData), wc.ByteLen)
	if err != nil || e.stream.PeerGone() || e.stream.Err() != nil {
		return ev, err
	}
	if ev.Has(EventProved) && !proved(e.stream.ProbeBytes(int(wc.ByteLen)), e.seed) {
		return 0, ErrProbe
	}
	if err := e.qp.PostRecv(&e.cfg.Works.recv); err != nil && !e.stream.disconnected {
		return ev, fmt.Errorf("post receive: %w: %w", ErrConnection, err)
	}
	return ev, nil
}

// report does everything that a completion may have made possible: it frees the send buffer, posts control messages and
// wakes the writer.
func (e *Endpoint) report(ev Events) Events {
	if e.mapper == nil {
		if err := e.sndbuf.freeTo(e.stream.FreedOffset()); err != nil {
			e.stream.Fail(err)
		}
	}
	if e.freeDirect() {
		ev |= EventWritable
	}
	e.echo()
	if err := e.finish(); err != nil && !e.reported {
		e.reported = true
		ev |= EventFailed
	}
	e.retireRing() // posting may have ended a ring exchange
	if e.starved && e.Blocked() == NotBlocked {
		e.starved = false
		ev |= EventWritable
	}
	return ev
}
