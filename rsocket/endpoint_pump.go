package rsocket

// ending is what to do once all bytes produced have been posted.
type ending uint8

const (
	endNone ending = iota
	endShutdown
	endDisconnect
)

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

// postPending sends the first n pending bytes, for which there is a window, as one message. If nothing is pending after
// it, the message is signaled, so that a completion is sure to follow.
func (e *Endpoint) postPending(n int) error {
	last := e.sndbuf.unposted() == n
	w := e.stream.record(n, last)
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
