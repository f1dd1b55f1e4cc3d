package socket

// ConnStats is a snapshot of a connection.
type ConnStats struct {
	// Sent and Received are bytes written by this side and read by it.
	Sent, Received uint64
	// Messages is the number of messages sent.
	Messages uint64
	// Unread is the number of bytes received but not read, Unsent the number of bytes written that still occupy the send
	// ring.
	Unread, Unsent int
	// Sleeps counts operations that waited longer than polling lasts.
	Sleeps uint64
}

// Stats returns a snapshot.
func (c *Conn) Stats() ConnStats {
	r, t := &c.rx, &c.tx
	// Load what trails before what it trails. Data dropped unread counts as consumed before it counts as received.
	consumed, freed, produced := r.consumed.Load(), t.ring.FreedTo(), t.ring.ProducedTo()
	return ConnStats{
		Sent: produced, Received: consumed,
		Messages: c.sentMessages.Load(), Sleeps: c.sleeps.Load(),
		Unread: max(0, int(r.produced.Load()-consumed)), Unsent: int(produced - freed),
	}
}
