package rsocket

// ending is what to do once all bytes produced have been posted.
type ending uint8

const (
	endNone ending = iota
	endShutdown
	endDisconnect
)

// SendSpan returns the free memory of the send buffer for the next bytes to send, as far as it is contiguous: fill a
// prefix, then call [Endpoint.Produced]. Unlike the other methods, SendSpan and Produced may be called by a goroutine
// other than the owner's, one at a time, from the return of [Endpoint.Connect] until [Endpoint.Close] is called. The
// endpoint must not be [Endpoint.Mapped].
//
// After an empty span the producer waits until the owner sees [EventWritable], which the HandleWC that frees memory
// reports. The event is occasionally spurious, when the producer has found the memory by itself.
func (e *Endpoint) SendSpan() []byte {
	if e.sndbuf == nil {
		return nil
	}
	span := e.sndbuf.Span()
	if len(span) == 0 {
		e.sndbuf.full.Store(true)
		// The owner does not report memory that it freed before it could see full: look again.
		if span = e.sndbuf.Span(); len(span) > 0 {
			e.sndbuf.full.Store(false)
		}
	}
	return span
}

// Produced hands the first n bytes of the last [Endpoint.SendSpan] over for sending. If [Endpoint.WantsPump] then says
// so, the producer must have the owner call [Endpoint.Pump]. Hand large amounts over in pieces, so that copying
// overlaps with sending.
func (e *Endpoint) Produced(n int) error { return e.sndbuf.Produce(n) }

// WantsPump reports, after [Endpoint.Produced], whether the owner must be told. It need not be while small messages are
// coalesced or the peer has no room: the completion that ends this state makes the owner call [Endpoint.Pump] anyway.
func (e *Endpoint) WantsPump() bool { return e.sndbuf.Wanting() }

// Unposted returns the number of bytes produced but not yet posted. Only the owner may call it.
func (e *Endpoint) Unposted() int {
	if e.sndbuf == nil {
		return 0
	}
	return e.sndbuf.unposted()
}

// Pump posts what was produced, in the largest messages that grants and the send buffer allow, and returns how many
// bytes it posted. The owner calls it when told that something was produced, and after every batch of completions,
// which may have unblocked it. While two small messages are in flight, further small pieces are coalesced until one of
// them completes.
func (e *Endpoint) Pump() (posted int, err error) {
	if e.mapper != nil {
		return 0, ErrState
	}
	return e.pump(true)
}

func (e *Endpoint) pump(gather bool) (posted int, err error) {
	if e.sndbuf == nil {
		return 0, e.finish()
	}
	if e.sndbuf.held.Load() != heldNot {
		e.sndbuf.held.Store(heldNot) // before loading produced: see SendRing.Wanting
	}
	for {
		n := len(e.sndbuf.pending())
		if n == 0 {
			break
		}
		window, why := e.stream.Window()
		if window == 0 {
			if why != BlockedClosed {
				e.sndbuf.held.Store(heldBlocked)
			}
			break
		}
		if gather && e.gathering() {
			e.sndbuf.held.Store(heldSmall)
			break
		}
		n = min(n, window)
		if err := e.postPending(n); err != nil {
			return posted, err
		}
		posted += n
	}
	return posted, e.finish()
}

// gathering reports whether to coalesce: the last two small messages are both in flight, so a completion will come.
func (e *Endpoint) gathering() bool {
	return e.ending == endNone && e.sndbuf.unposted() < batchBytes && e.small[0] > e.stream.send.doneWorks
}

// postPending sends the first n pending bytes as one message. If nothing is pending after it, the message is signaled,
// so that a completion is sure to follow.
func (e *Endpoint) postPending(n int) error {
	last := e.sndbuf.unposted() == n
	w, err := e.stream.sendData(n, last)
	if err != nil {
		return err
	}
	if n < batchBytes && last {
		e.small[0], e.small[1] = e.small[1], e.stream.send.works
	}
	return e.postBuffered(w)
}

// postBuffered posts the next bytes of the send buffer.
func (e *Endpoint) postBuffered(w Write) error {
	at := e.sndbuf.post(w.Length)
	flags := e.push(w.Length)
	if w.Length <= e.cfg.Inline {
		return e.postInline(w, e.send.Bytes()[at:at+w.Length], flags)
	}
	return e.post(w, regionSGE(e.send, at, w.Length), flags)
}

// finish ends the stream as requested, once everything before the end has been posted.
func (e *Endpoint) finish() error {
	if e.ending != endNone && e.Unposted() == 0 && !e.stream.announcing() {
		if e.ending == endShutdown {
			e.stream.Shutdown()
		} else {
			e.stream.Disconnect()
		}
		e.ending = endNone
	}
	return e.postControls()
}
