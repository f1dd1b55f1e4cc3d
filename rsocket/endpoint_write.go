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
	// Receive distinguishes a failed receive from a failed send.
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

// WriteSpan returns contiguous memory for the next bytes to send, as much as one message may carry now. On devices that
// map the peer's memory it is the peer's ring itself, and valid only until the driver's next Progress. An empty span
// means blocked: [Endpoint.Blocked] says why, and EventWritable reports the end unless it never ends.
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

// unmapped handles a failed mapping. While the peer's queue pair has not connected yet, its memory cannot be mapped,
// and no event would tell when it can. An empty write waits for the peer in the send queue: its completion tells that
// the peer has connected, and it fails if the peer is gone.
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

// Blocked returns why WriteSpan is empty.
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

// Room returns how many bytes the next message may carry, or why none, and how many messages the peer's credits allow.
func (e *Endpoint) Room() (window, credits int, why Blocked) {
	window, why = e.stream.Window()
	return window, int(e.stream.send.limit - e.stream.send.messages), why
}

// Commit sends the first n bytes of the last WriteSpan. A larger n is [ErrBlocked].
func (e *Endpoint) Commit(n int) error {
	if e.mapper == nil && (n > len(e.sndbuf.Span()) || e.sndbuf.unposted() > 0) {
		return ErrBlocked
	}
	w, err := e.stream.Send(n)
	if err != nil {
		return err
	}
	if e.mapper != nil {
		return e.post(w, verbs.SGE{Addr: w.RemoteAddr, Length: uint32(n), LKey: w.RKey}, verbs.SendMapped)
	}
	if err := e.sndbuf.Produce(n); err != nil {
		e.stream.Fail(err)
		return err
	}
	return e.postBuffered(w)
}

// push asks for the peer's consumer to be notified immediately once enough bytes are posted for it to start on.
func (e *Endpoint) push(n int) verbs.SendFlags {
	e.unpushed += n
	if e.unpushed < pushBytes {
		return 0
	}
	e.unpushed = 0
	return verbs.SendPush
}

// post posts one write. A failure loses the queue pair; what has arrived already is still received.
func (e *Endpoint) post(w Write, local verbs.SGE, flags verbs.SendFlags) error {
	wr := e.prepare(w, flags)
	if w.Length > 0 {
		e.cfg.Works.sge[0] = local
		wr.SGList = e.cfg.Works.sge[:]
	}
	return e.submit(wr)
}

// postInline posts one write whose bytes are in the work request.
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

// postControls posts all control messages and announcements that are due, each from its slot's scratch entry.
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

// regionSGE describes n bytes of a region.
func regionSGE(r *rmb.Region, start, n int) verbs.SGE {
	return verbs.SGE{Addr: r.Addr() + uint64(start), Length: uint32(n), LKey: r.LKey()}
}

// Shutdown ends our direction after everything committed or produced.
func (e *Endpoint) Shutdown() error {
	if e.ending == endNone {
		e.ending = endShutdown
	}
	return e.end()
}

// Disconnect ends both directions after everything committed or produced. EventDisconnected reports that it is done.
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

// Keepalive makes the transport probe the peer's transport; if that does not answer, the queue pair fails.
func (e *Endpoint) Keepalive() error {
	e.stream.Keepalive()
	return e.postControls()
}
