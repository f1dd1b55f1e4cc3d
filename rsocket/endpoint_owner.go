package rsocket

// What an owner asks that gives the two directions of an endpoint to goroutines of their own, as package socket does.

// Config returns what the endpoint was made with, defaults filled in.
func (e *Endpoint) Config() EndpointConfig { return e.cfg }

// Ring returns the memory of the receive ring.
func (e *Endpoint) Ring() []byte { return e.ring.Bytes() }

// SendRing returns the send buffer, which is empty where the peer's ring is mapped. Its producer may be another
// goroutine than the endpoint's owner.
func (e *Endpoint) SendRing() *SendRing {
	if e.sndbuf == nil {
		return new(SendRing)
	}
	return e.sndbuf
}

// RecvDepth returns the number of receives that are posted.
func (e *Endpoint) RecvDepth() int { return int(e.stream.set.credits) + ExtraRecvs }

// SentMessages returns how many messages the bytes sent took.
func (e *Endpoint) SentMessages() uint64 { return e.stream.send.messages }

// CreditsDue reports whether half of the credits have been spent and not been returned.
func (e *Endpoint) CreditsDue() bool {
	return e.stream.recv.messages-e.stream.recv.returned >= uint64(e.stream.set.credits/2)
}

// Disconnected reports whether both directions have ended.
func (e *Endpoint) Disconnected() bool { return e.stream.disconnected }

// Deaf reports whether the stream takes no notice of the peer any more: a failure is its last word.
func (e *Endpoint) Deaf() bool { return e.stream.deaf }

// PeerGone reports whether the peer has said that it writes nothing into our memory any more.
func (e *Endpoint) PeerGone() bool { return e.stream.PeerGone() }

// EndInOrder ends the stream as if the acknowledgement of the last message had come.
func (e *Endpoint) EndInOrder() { e.stream.disconnect() }

// Lose ends the stream by an error that did not come through the queue pair.
func (e *Endpoint) Lose(err error) { e.stream.Lose(err) }

// Retire gives all receives of the endpoint back; nothing is posted any more.
func (e *Endpoint) Retire() { e.retire() }
