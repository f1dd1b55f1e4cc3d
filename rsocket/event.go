package rsocket

// Events reports what a completion changed. Its bits are edges: one may be set although nothing is left to do by the
// time the owner looks, but no change goes unreported.
type Events uint16

// Events.
const (
	// EventReadable: bytes arrived; ReadSpan is not empty unless they have been consumed already.
	EventReadable Events = 1 << iota
	// EventWritable: WriteSpan returned nothing earlier and would return something now.
	EventWritable
	// EventShutdown: the peer will send no more data. This is only a hint where a layer above the stream knows the true
	// end.
	EventShutdown
	// EventDisconnected: nothing more is sent or received; received bytes can still be read.
	EventDisconnected
	// EventProbe: the peer's probe arrived and is being echoed.
	EventProbe
	// EventProved: our probe came back intact.
	EventProved
	// EventFailed: the stream is broken; Err returns why.
	EventFailed
	// EventIOMap: the peer announced memory for direct placement, see [Endpoint.RemoteMap].
	EventIOMap
)

// Has reports whether all bits of f are set.
func (e Events) Has(f Events) bool { return e&f == f }

// Blocked is why nothing can be written now.
type Blocked uint8

// Reasons for being blocked, in the order in which they are checked.
const (
	// NotBlocked: the next write can be sent.
	NotBlocked Blocked = iota
	// BlockedClosed: the stream is not connected, the direction is shut down, or the stream has failed. This never ends.
	BlockedClosed
	// BlockedGrant: the peer's ring is full; its next grant ends it.
	BlockedGrant
	// BlockedCredit: the peer's receive queue is full; its next credit ends it.
	BlockedCredit
	// BlockedSQ: our send queue is full; a send completion ends it.
	BlockedSQ
	// BlockedSndbuf: our send buffer is full; a credit, a grant or a send completion ends it.
	BlockedSndbuf
	// BlockedIOMap: mappings must be announced first, and wait for a credit or a send completion.
	BlockedIOMap
)

// String names the reason.
func (b Blocked) String() string {
	names := [...]string{"no", "closed", "grant", "credit", "sq", "sndbuf", "iomap"}
	if int(b) < len(names) {
		return names[b]
	}
	return "unknown"
}
