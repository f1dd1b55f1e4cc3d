package rsocket

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
)

// ErrConnection is the loss of the queue pair: a failed post or completion. It wraps ECONNRESET.
var ErrConnection = fmt.Errorf("rdma connection lost: %w", syscall.ECONNRESET)

// CompletionError is a work completion that failed. It unwraps to [ErrConnection].
type CompletionError struct {
	// Status is the status of the completion.
	Status verbs.WCStatus
	// Receive tells a failed receive from a failed send.
	Receive bool
}

// Error names the status.
func (e *CompletionError) Error() string {
	if e.Receive {
		return "receive completion " + e.Status.String()
	}
	return "send completion " + e.Status.String()
}

// Unwrap returns [ErrConnection].
func (e *CompletionError) Unwrap() error { return ErrConnection }

// WriteSpan returns memory for the next bytes to send, contiguous and as much as may be sent in one message now. On
// devices that map the peer's memory it is the peer's ring itself and valid only until the driver's next Progress. Empty
// means blocked: [Endpoint.Blocked] says why, and EventWritable or nothing at all ends it.
func (e *Endpoint) WriteSpan() []byte {
	span := e.writeSpan()
	e.starved = len(span) == 0
	return span
}

func (e *Endpoint) writeSpan() []byte {
	n, _ := e.stream.Window()
	if n == 0 {
		return nil
	}
	if e.mapper == nil {
		if e.sndbuf.unposted() > 0 {
			return nil
		}
		span := e.sndbuf.Span()
		return span[:min(n, len(span))]
	}
	addr, key := e.stream.Target()
	span, err := e.mapper.MapRemote(key, addr, n)
	if err != nil {
		e.unmapped(err)
		return nil
	}
	return span
}

// unmapped: a queue pair whose partner has not connected to it yet has no memory to show, and nothing would tell when it
// has. An empty write waits for the partner in the send queue, so its completion does; if the partner is gone, it fails.
func (e *Endpoint) unmapped(err error) {
	if !errors.Is(err, verbs.ErrRemoteGone) || e.qp.State() != verbs.QPSRTS {
		e.stream.Fail(fmt.Errorf("map peer's ring: %w: %w", ErrConnection, err))
		return
	}
	if !e.unbound {
		e.unbound = true
		e.stream.Keepalive()
		_ = e.postControls() // a failure is in the stream
	}
}

// Blocked says why WriteSpan is empty.
func (e *Endpoint) Blocked() Blocked {
	n, why := e.stream.Window()
	switch {
	case n == 0:
		return why
	case e.unbound:
		return BlockedSQ
	case e.mapper == nil && (e.sndbuf.Free() == 0 || e.sndbuf.unposted() > 0):
		return BlockedSndbuf
	}
	return NotBlocked
}

// Room returns how many bytes the next message may carry, or why none, and for how many messages the peer has given
// credits.
func (e *Endpoint) Room() (window, credits int, why Blocked) {
	window, why = e.stream.Window()
	return window, int(e.stream.send.limit - e.stream.send.messages), why
}

// Commit sends the first n bytes of the span that WriteSpan returned last. More bytes are [ErrBlocked].
func (e *Endpoint) Commit(n int) error {
	if e.mapper == nil && (n > len(e.sndbuf.Span()) || e.sndbuf.unposted() > 0) {
		return ErrBlocked
	}
	w, err := e.stream.Send(n)
	if err != nil {
		return err
	}
	if e.mapper != nil {
		return e.post(w, verbs.SGE{Addr: w.RemoteAddr, Length: uint32(n), LKey: w.RKey}, e.push(n)|verbs.SendMapped)
	}
	if err := e.sndbuf.Produce(n); err != nil {
		e.stream.Fail(err)
		return err
	}
	return e.postBuffered(w)
}

// push rings at once when enough has gathered for the consumer to start on.
func (e *Endpoint) push(n int) verbs.SendFlags {
	e.unpushed += n
	if e.unpushed < pushBytes {
		return 0
	}
	e.unpushed = 0
	return verbs.SendPush
}

// post posts one write; a failure breaks the stream, except for what has arrived already.
func (e *Endpoint) post(w Write, local verbs.SGE, flags verbs.SendFlags) error {
	wr := e.prepare(w, flags)
	if w.Length > 0 {
		e.cfg.Works.sge[0] = local
		wr.SGList = e.cfg.Works.sge[:]
	}
	return e.submit(wr)
}

// postInline posts one write with its bytes in the work request.
func (e *Endpoint) postInline(w Write, b []byte, flags verbs.SendFlags) error {
	wr := e.prepare(w, flags|verbs.SendInline)
	wr.Inline = b
	return e.submit(wr)
}

func (e *Endpoint) prepare(w Write, flags verbs.SendFlags) *verbs.SendWR {
	wr := &e.cfg.Works.send
	*wr = verbs.SendWR{
		WRID: w.ID, Opcode: verbs.WRRDMAWriteWithImm, Flags: flags, ImmData: uint32(w.Imm),
		RemoteAddr: w.RemoteAddr, RKey: w.RKey,
	}
	if w.Signaled {
		wr.Flags |= verbs.SendSignaled
	}
	if w.Bare {
		wr.Opcode = verbs.WRRDMAWrite
	}
	return wr
}

func (e *Endpoint) submit(wr *verbs.SendWR) error {
	if err := e.qp.PostSend(wr); err != nil {
		err = fmt.Errorf("post write: %w: %w", ErrConnection, err)
		e.stream.Lose(err)
		return e.stream.Err()
	}
	return nil
}

// postControls posts all control messages and announcements that are due, each from the scratch entry of its slot.
func (e *Endpoint) postControls() error {
	for {
		c, ok := e.stream.NextControl()
		if !ok {
			break
		}
		if err := e.post(c.Write, e.scratch(&c), 0); err != nil {
			return err
		}
	}
	if e.stream.announcing() {
		_ = e.postAnnouncements() // a failure is in the stream
	}
	return e.stream.Err()
}

func (e *Endpoint) scratch(c *Control) verbs.SGE {
	if c.Length == 0 {
		return verbs.SGE{}
	}
	offset := e.listSize() + c.Slot*sgeSize
	copy(e.control.Bytes()[offset:], c.Payload[:c.Length])
	return verbs.SGE{Addr: e.control.Addr() + uint64(offset), Length: uint32(c.Length), LKey: e.control.LKey()}
}

// regionSGE names n bytes of a region.
func regionSGE(r *rmb.Region, start, n int) verbs.SGE {
	return verbs.SGE{Addr: r.Addr() + uint64(start), Length: uint32(n), LKey: r.LKey()}
}

// Shutdown ends the own direction after everything committed or produced.
func (e *Endpoint) Shutdown() error {
	if e.ending == endNone {
		e.ending = endShutdown
	}
	return e.end()
}

// Disconnect ends both directions after everything committed or produced. EventDisconnected tells when it is done.
func (e *Endpoint) Disconnect() error {
	e.ending = endDisconnect
	return e.end()
}

func (e *Endpoint) end() error {
	if e.Unposted() > 0 {
		_, err := e.Pump()
		return err
	}
	return e.finish()
}

// Keepalive makes the transport ask the peer's transport for a sign of life; silence fails the queue pair.
func (e *Endpoint) Keepalive() error {
	e.stream.Keepalive()
	return e.postControls()
}
