package rsocket

// ending is what to do after the bytes that were produced and not posted yet.
type ending uint8

const (
	endNone ending = iota
	endShutdown
	endDisconnect
)

// SendSpan returns the free memory of the send buffer where the next bytes to send go, as far as it is contiguous: fill a
// prefix, then call [Endpoint.Produced]. Unlike anything else here, SendSpan and Produced may be called by another
// goroutine than the owner's, one at a time, from the return of [Endpoint.Connect] until [Endpoint.Close] is called. They
// need an endpoint that is not [Endpoint.Mapped].
//
// After an empty span the producer waits until the owner has seen [EventWritable], which is reported by the HandleWC that
// frees memory; now and then one comes although the producer has found the memory by itself.
func (e *Endpoint) SendSpan() []byte {
	if e.sndbuf == nil {
		return nil
	}
	span := e.sndbuf.Span()
	if len(span) == 0 {
		e.sndbuf.full.Store(true)
		// What was freed before the owner could see Full has not been reported.
		if span = e.sndbuf.Span(); len(span) > 0 {
			e.sndbuf.full.Store(false)
		}
	}
	return span
}

// Produced hands the first n bytes of the last [Endpoint.SendSpan] over to be sent. The producer sees to it that the owner
// calls [Endpoint.Pump] if [Endpoint.WantsPump] says so; large amounts are handed over in pieces, so that copying overlaps
// with sending.
func (e *Endpoint) Produced(n int) error { return e.sndbuf.Produce(n) }

// WantsPump tells the producer, after [Endpoint.Produced], whether the owner has to be told. It need not be while small
// messages gather or the peer has no room: the completion that ends this makes the owner call [Endpoint.Pump] anyway.
func (e *Endpoint) WantsPump() bool { return e.sndbuf.Wanting() }

// Unposted returns the number of bytes produced that no message carries yet. It is for the owner.
func (e *Endpoint) Unposted() int {
	if e.sndbuf == nil {
		return 0
	}
	return e.sndbuf.unposted()
}

// Pump posts what was produced, in the largest messages that grants and the send buffer allow, and returns how many bytes
// went out. The owner calls it when told that something was produced, and after every batch of completions: what could
// not go before can go then. What comes in small pieces while two small messages are under way is left to gather until
// one of them has completed.
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
		e.sndbuf.held.Store(heldNot) // before looking at what was produced
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

// gathering: the last two small messages are both under way, and a completion after them will come.
func (e *Endpoint) gathering() bool {
	return e.ending == endNone && e.sndbuf.unposted() < batchBytes && e.small[0] > e.stream.send.doneWorks
}

// postPending sends the first n pending bytes as one message. A message after which nothing waits is signaled, so that
// something is known to happen when it is through.
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

// finish ends the stream as it was asked to, once everything in front of the end has been posted.
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
