package report

// InProcess holds the numbers of the in-process way. Those with a help tag are also metrics
// with the same names.
type InProcess struct {
	// Enabled: the configuration enables it. Note says why programs are not served.
	Enabled bool   `json:"enabled"`
	Serving bool   `json:"serving" help:"1 while programs with the library are served, else 0."`
	Note    string `json:"note,omitempty"`

	Processes        int    `json:"processes" help:"Processes with the library that have asked."`
	Waiting          int    `json:"waiting" help:"Ends of connections that wait for the other end to ask."`
	Connections      int    `json:"connections" help:"Connections in process now."`
	ConnectionsTotal uint64 `json:"connections_total" help:"Connections promoted since the start."`
	RingBytesTotal   uint64 `json:"ring_bytes_total" help:"Application bytes of connections in process, both directions, as the programs say; the kernel's counters of packets have none of them."`
	MemoryBytes      int64  `json:"memory_bytes" help:"What the rings of connections in process could hold."`
	Asked            uint64 `json:"asked_total" help:"Questions of programs whether a connection may be promoted."`
	Predicted        uint64 `json:"predicted_total" help:"Connections that would have been promoted, in the mode observe."`
	Broken           uint64 `json:"broken_total" help:"Connections that were reset because a program's memory said what cannot be."`
	Misbehaved       uint64 `json:"misbehaved_total" help:"Programs that were let go because they said what cannot be."`
	// Native counts refusals and ends by the reason for which they are native.
	Native map[string]uint64 `json:"native_total,omitempty"`
}

// InProcessEnd is one end of a connection, as reported by its program, which has the library.
type InProcessEnd struct {
	// Conn is the same at both ends; 0 before they are brought together.
	Conn uint64 `json:"conn,omitempty"`
	// Bytes that went through the ring, and through the kernel while the connection was
	// promoted; tokens are the bytes that woke the other end.
	TxRing    uint64 `json:"tx_ring_bytes"`
	RxRing    uint64 `json:"rx_ring_bytes"`
	TxSpilled uint64 `json:"tx_spilled_bytes"`
	RxSpilled uint64 `json:"rx_spilled_bytes"`
	TxTokens  uint64 `json:"tx_tokens"`
	RxTokens  uint64 `json:"rx_tokens"`
	// Spills counts changes from the ring to the kernel, Returns those back.
	Spills  uint32 `json:"spills"`
	Returns uint32 `json:"returns"`
	// ResidentBytes is how much of the host's memory both rings occupy.
	ResidentBytes int64 `json:"resident_bytes"`
}

// TellWay sets the way of a connection unless it is set.
func (c *ConnInfo) TellWay() {
	if c.Way == "" {
		c.Way = c.way()
	}
}

// way returns the way of a connection that is not in process.
func (c *ConnInfo) way() Way {
	if c.Carrier == CarrierNone && (c.End == EndNative || c.State == "native" || c.State == "released") {
		return WayNative
	}
	return WaySteered
}
