package rsocket

// These methods are for an owner that gives each direction of an endpoint its own goroutine, as package socket does.

// Ring returns the memory of the receive ring.
func (e *Endpoint) Ring() []byte { return e.ring.Bytes() }

// SendRing returns the send buffer, which is empty where the peer's ring is mapped. Its producer may run on another
// goroutine than the endpoint's owner, from the return of [Endpoint.Connect] until [Endpoint.Close] is called. No event
// tells that memory is free again: the owner looks at [SendRing.Free] after each completion.
func (e *Endpoint) SendRing() *SendRing {
	if e.sndbuf == nil {
		return new(SendRing)
	}
	return e.sndbuf
}

// RecvDepth returns the number of posted receives.
func (e *Endpoint) RecvDepth() int { return int(e.stream.set.credits) + ExtraRecvs }

// SentMessages returns the number of messages sent.
func (e *Endpoint) SentMessages() uint64 { return e.stream.send.messages }

// CreditsDue reports whether half of the credits have been spent and not returned.
func (e *Endpoint) CreditsDue() bool {
	return e.stream.recv.messages-e.stream.recv.returned >= uint64(e.stream.set.credits/2)
}

// OwesCredits reports whether everything received was consumed, and the peer is not being told.
func (e *Endpoint) OwesCredits() bool { return !e.stream.recv.early && e.stream.owesCredits() }

// ReturnCredits is [Stream.ReturnCredits]. It posts the message if that can go now.
func (e *Endpoint) ReturnCredits() error {
	e.stream.ReturnCredits()
	return e.postControls()
}

// CreditsSettled reports whether the credits that were due, or returned by [Endpoint.ReturnCredits], have reached the peer.
func (e *Endpoint) CreditsSettled() bool { return e.stream.creditsSettled() }

// Disconnected reports whether both directions have ended.
func (e *Endpoint) Disconnected() bool { return e.stream.disconnected }

// Deaf reports whether the stream ignores what the peer sends from now on, so that its failure is final.
func (e *Endpoint) Deaf() bool { return e.stream.deaf }

// EndInOrder ends the stream as if the last message had been acknowledged.
func (e *Endpoint) EndInOrder() { e.stream.disconnect() }

// Lose ends the stream with an error that did not come through the queue pair.
func (e *Endpoint) Lose(err error) { e.stream.Lose(err) }

// Retire ends the use of the endpoint and quarantines its memory; nothing is posted any more.
func (e *Endpoint) Retire() { e.retire() }
