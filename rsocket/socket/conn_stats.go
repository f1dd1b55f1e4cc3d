package socket

// ConnStats is a snapshot of a connection.
type ConnStats struct {
	// Sent and Received are bytes written by this side and read by it.
	Sent, Received uint64
	// Messages is how many messages the bytes sent took.
	Messages uint64
	// Unread is what has been received and not been read, Unsent what has been written and still occupies the send ring.
	Unread, Unsent int
	// Sleeps counts operations that had to wait longer than polling lasts.
	Sleeps uint64
}

// Stats returns a snapshot.
func (c *Conn) Stats() ConnStats {
	r, t := &c.rx, &c.tx
	// Before produced. What is dropped unread is counted as consumed before.
	consumed, produced, freed := r.consumed.Load(), t.ring.ProducedTo(), t.ring.FreedTo()
	return ConnStats{
		Sent: produced, Received: consumed,
		Messages: c.sentMessages.Load(), Sleeps: c.sleeps.Load(),
		Unread: max(0, int(r.produced.Load()-consumed)), Unsent: int(produced - freed),
	}
}
