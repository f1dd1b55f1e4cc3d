package admin

import "github.com/smcgw/smcgw/gateway/config"

// InProcess are the numbers of the in-process way.
type InProcess struct {
	// Enabled: the configuration has it. Serving: programs can ask; Note says why not.
	Enabled bool   `json:"enabled"`
	Serving bool   `json:"serving"`
	Note    string `json:"note,omitempty"`
	// Processes are those with the library that have asked, Waiting the ends whose other end
	// has not.
	Processes int `json:"processes"`
	Waiting   int `json:"waiting"`
	// Connections are promoted now, ConnectionsTotal since the start.
	Connections      int    `json:"connections"`
	ConnectionsTotal uint64 `json:"connections_total"`
	// RingBytesTotal went by rings, both directions together, as the programs say.
	RingBytesTotal uint64 `json:"ring_bytes_total"`
	// MemoryBytes is what the rings could hold.
	MemoryBytes uint64 `json:"memory_bytes"`
	// Asked are questions of ends, Predicted connections that would have been promoted, in
	// the mode observe.
	Asked     uint64 `json:"asked_total"`
	Predicted uint64 `json:"predicted_total"`
	// Broken are connections that were reset because a program's memory said what cannot be.
	Broken uint64 `json:"broken_total"`
	// Misbehaved are programs that were let go because they said what cannot be.
	Misbehaved uint64 `json:"misbehaved_total"`
	// Native counts answers and ends by the reason for which they are native.
	Native map[string]uint64 `json:"native_total,omitempty"`
}

func (s InProcess) since(earlier InProcess) InProcess {
	d := s
	d.ConnectionsTotal = minus(s.ConnectionsTotal, earlier.ConnectionsTotal)
	d.RingBytesTotal = minus(s.RingBytesTotal, earlier.RingBytesTotal)
	d.Asked, d.Predicted = minus(s.Asked, earlier.Asked), minus(s.Predicted, earlier.Predicted)
	d.Misbehaved, d.Broken = minus(s.Misbehaved, earlier.Misbehaved), minus(s.Broken, earlier.Broken)
	if s.Native != nil {
		d.Native = less(s.Native, earlier.Native)
	}
	return d
}

// InProcessEnd is one end of a connection as its program says, which has the library.
type InProcessEnd struct {
	// Conn is the same at both ends, 0 before they are brought together.
	Conn uint64 `json:"conn,omitempty"`
	// Bytes that went by the ring, and by the kernel while the connection was promoted; tokens
	// are the bytes that woke the other end.
	TxRing    uint64 `json:"tx_ring_bytes"`
	RxRing    uint64 `json:"rx_ring_bytes"`
	TxSpilled uint64 `json:"tx_spilled_bytes"`
	RxSpilled uint64 `json:"rx_spilled_bytes"`
	TxTokens  uint64 `json:"tx_tokens"`
	RxTokens  uint64 `json:"rx_tokens"`
	// Spills are changes from the ring to the kernel, Returns those back.
	Spills  uint32 `json:"spills"`
	Returns uint32 `json:"returns"`
	// ResidentBytes is what both rings hold of the memory of the host.
	ResidentBytes int64 `json:"resident_bytes"`
}

// tellWay sets the way of a connection, unless it is known.
func (c *ConnInfo) tellWay() {
	if c.Way == "" {
		c.Way = c.way()
	}
}

// way is that of a connection that is not in process.
func (c *ConnInfo) way() config.Way {
	if c.Carrier == config.CarrierNone && (c.End == EndNative || c.State == "native" || c.State == "released") {
		return config.WayNative
	}
	return config.WaySteered
}
