package report

import (
	"errors"
	"maps"
	"time"
)

// Stats are the totals of a gateway since its start, by protocol and carrier.
// Counters only grow; nothing resets them. The difference of two of them is
// about the span between, see [Stats.Since]. The admin server sets Schema; the
// source of the statistics need not.
type Stats struct {
	Schema string `json:"schema"`
	// StartedAt is when the gateway started: equal in two documents of one run.
	StartedAt time.Time `json:"started_at"`
	// Seconds is the time the counters cover.
	Seconds float64 `json:"seconds"`
	// Protocols has an entry for tcp and one for udp.
	Protocols map[Proto]ProtoStats `json:"protocols"`
	Datagrams DatagramStats        `json:"datagrams"`
	// InProcess is about connections between programs that have the library.
	InProcess InProcess `json:"in_process"`
}

// ProtoStats are flows and bytes of one protocol. A flow of UDP is a pair of
// addresses and ports between which datagrams are carried, until it is idle.
type ProtoStats struct {
	Flows map[Carrier]FlowCount `json:"flows"`
	// Bytes are those of the applications, without any header.
	Bytes map[Carrier]ByteCount `json:"bytes"`
	// Native counts connections (tcp) and pairs (udp) that stayed or became
	// native, by the name of a reason of negotiate. What the kernel programs
	// decided by themselves is under tcp for both.
	Native map[string]uint64 `json:"native"`
}

// FlowCount counts carried flows.
type FlowCount struct {
	// Now is how many there are, Total how many began.
	Now   int    `json:"now"`
	Total uint64 `json:"total"`
}

// DatagramStats counts the datagrams of UDP programs that were steered to this
// gateway, or came to it from a peer. Every one of them is counted once in Sent,
// Returned or Dropped, and once in Received; every received one again in
// Delivered or Dropped.
type DatagramStats struct {
	// Sent counts datagrams of local programs that a carrier took.
	Sent map[Carrier]uint64 `json:"sent"`
	// Received counts whole datagrams from peers.
	Received map[Carrier]uint64 `json:"received"`
	// Delivered counts received datagrams handed to the network of this host.
	Delivered uint64 `json:"delivered"`
	// Returned counts datagrams that were returned to the network as they came:
	// they went out natively.
	Returned uint64 `json:"returned"`
	// Dropped counts lost datagrams, as UDP may lose them, by DatagramDrop.
	Dropped map[DatagramDrop]uint64 `json:"dropped"`
	// Resolution counts the messages on the datagram port.
	Resolution ResolutionStats `json:"resolution"`
}

// DatagramDrop says why a datagram was dropped.
type DatagramDrop string

// The causes.
const (
	DropMalformed    DatagramDrop = "malformed"     // the message of a peer is no datagram
	DropUnproven     DatagramDrop = "unproven"      // from a queue pair that is no proven peer's
	DropWrongSource  DatagramDrop = "wrong_source"  // a peer sends what is not from its address
	DropWrongTarget  DatagramDrop = "wrong_target"  // a peer sends what is not for this host
	DropReassembly   DatagramDrop = "reassembly"    // a piece of it was lost
	DropQueueFull    DatagramDrop = "queue_full"    // more than the carrier or this host takes
	DropCarrierError DatagramDrop = "carrier_error" // the device failed while it had it
)

// DatagramDrops lists every DatagramDrop.
func DatagramDrops() []DatagramDrop {
	return []DatagramDrop{
		DropMalformed, DropUnproven, DropWrongSource, DropWrongTarget, DropReassembly, DropQueueFull, DropCarrierError,
	}
}

// ResolutionStats counts the messages on the datagram port.
type ResolutionStats struct {
	// Queries were sent to peers, Answers and Refusals came for them.
	Queries  uint64 `json:"queries"`
	Answers  uint64 `json:"answers"`
	Refusals uint64 `json:"refusals"`
	// Asked are queries of peers, Answered those that got carriers, Refused
	// those that got a reason.
	Asked    uint64 `json:"asked"`
	Answered uint64 `json:"answered"`
	Refused  uint64 `json:"refused"`
	// Ignored counts messages that had no effect: late, forged, malformed, or
	// more than the limits allow.
	Ignored uint64 `json:"ignored"`
}

// ErrRestarted says that two documents are not of the same run.
var ErrRestarted = errors.New("gateway restarted in between")

// Since returns what happened between earlier and s, which must be of one run:
// counters become differences, numbers of the moment stay.
func (s Stats) Since(earlier Stats) (Stats, error) {
	if !s.StartedAt.Equal(earlier.StartedAt) {
		return Stats{}, ErrRestarted
	}
	d := s
	takeCounters(&d, earlier)
	d.Seconds = max(s.Seconds-earlier.Seconds, 0)
	return d, nil
}

// Filled gives every carrier, cause and protocol its entries: a path of a script
// into what has not happened yet is 0, not null.
func (s Stats) Filled() Stats {
	all := map[Proto]ProtoStats{ProtoTCP: {}, ProtoUDP: {}}
	maps.Copy(all, s.Protocols)
	for p, ps := range all {
		ps.Flows, ps.Bytes = withCarriers(ps.Flows), withCarriers(ps.Bytes)
		if p == ProtoUDP { // the wire leg carries no datagrams
			delete(ps.Flows, CarrierRelay)
			delete(ps.Bytes, CarrierRelay)
		}
		if ps.Native == nil {
			ps.Native = map[string]uint64{}
		}
		all[p] = ps
	}
	s.Protocols = all
	d := &s.Datagrams
	d.Sent, d.Received = withCarriers(d.Sent), withCarriers(d.Received)
	delete(d.Sent, CarrierRelay)
	delete(d.Received, CarrierRelay)
	dropped := make(map[DatagramDrop]uint64)
	for _, cause := range DatagramDrops() {
		dropped[cause] = 0
	}
	maps.Copy(dropped, d.Dropped)
	d.Dropped = dropped
	return s
}
