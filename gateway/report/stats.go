package report

import (
	"errors"
	"maps"
	"time"
)

// Stats are the totals of a gateway since its start, by protocol and carrier. Counters only
// grow; nothing resets them. The difference of two Stats covers the time between them, see
// [Stats.Since]. The admin server sets Schema; the source of the statistics need not.
type Stats struct {
	Schema string `json:"schema"`
	// StartedAt is when the gateway started; it is equal in all documents of one run.
	StartedAt time.Time `json:"started_at"`
	// Seconds is the time the counters cover.
	Seconds float64 `json:"seconds"`
	// Protocols has an entry for tcp and one for udp.
	Protocols map[Proto]ProtoStats `json:"protocols"`
	Datagrams DatagramStats        `json:"datagrams"`
	// InProcess is about connections between programs that have the library.
	InProcess InProcess `json:"in_process"`
}

// ProtoStats are the flows and bytes of one protocol. A UDP flow is a pair of addresses and
// ports between which datagrams are carried, until it is idle.
type ProtoStats struct {
	Flows map[Carrier]FlowCount `json:"flows"`
	// Bytes counts application bytes, without any header.
	Bytes map[Carrier]ByteCount `json:"bytes"`
	// Native counts connections (tcp) and pairs (udp) that stayed or became native, by the
	// name of a reason of negotiate.
	Native map[string]uint64 `json:"native"`
}

// FlowCount counts carried flows.
type FlowCount struct {
	// Now is how many there are, Total how many have begun.
	Now   int    `json:"now"`
	Total uint64 `json:"total"`
}

// DatagramStats counts the datagrams of UDP programs that were steered to this gateway or
// came from a peer. Each steered one is counted once in Sent, Returned or Dropped. Each one
// from a peer is counted once in Received, and again in Delivered or Dropped.
type DatagramStats struct {
	// Sent counts datagrams of local programs that a carrier accepted.
	Sent map[Carrier]uint64 `json:"sent"`
	// Received counts whole datagrams from peers.
	Received map[Carrier]uint64 `json:"received"`
	// Delivered counts received datagrams passed to this host's network.
	Delivered uint64 `json:"delivered"`
	// Returned counts datagrams returned to the network unchanged: they were sent natively.
	Returned uint64 `json:"returned"`
	// Dropped counts lost datagrams by DatagramDrop. UDP permits such losses.
	Dropped map[DatagramDrop]uint64 `json:"dropped"`
	// Resolution counts the messages on the datagram port.
	Resolution ResolutionStats `json:"resolution"`
}

// DatagramDrop says why a datagram was dropped.
type DatagramDrop string

// The causes.
const (
	DropMalformed    DatagramDrop = "malformed"     // the peer's message is not a datagram
	DropUnproven     DatagramDrop = "unproven"      // it came from a queue pair that belongs to no proven peer
	DropWrongSource  DatagramDrop = "wrong_source"  // the source is not the peer's address
	DropWrongTarget  DatagramDrop = "wrong_target"  // the destination is not this host
	DropReassembly   DatagramDrop = "reassembly"    // a piece of it was lost
	DropQueueFull    DatagramDrop = "queue_full"    // more than the carrier or this host accepts
	DropCarrierError DatagramDrop = "carrier_error" // the device failed while it held it
)

// DatagramDrops lists every DatagramDrop.
func DatagramDrops() []DatagramDrop {
	return []DatagramDrop{
		DropMalformed, DropUnproven, DropWrongSource, DropWrongTarget, DropReassembly, DropQueueFull, DropCarrierError,
	}
}

// ResolutionStats counts the messages on the datagram port.
type ResolutionStats struct {
	// Queries counts those sent to peers; Answers and Refusals count the replies.
	Queries  uint64 `json:"queries"`
	Answers  uint64 `json:"answers"`
	Refusals uint64 `json:"refusals"`
	// Asked counts queries of peers, Answered those answered with carriers, Refused those
	// answered with a reason.
	Asked    uint64 `json:"asked"`
	Answered uint64 `json:"answered"`
	Refused  uint64 `json:"refused"`
	// Ignored counts messages without effect: late, forged, malformed, or above the limits.
	Ignored uint64 `json:"ignored"`
}

// ErrRestarted means that two documents are not from the same run.
var ErrRestarted = errors.New("gateway restarted in between")

// Since returns what happened between earlier and s, which must be from one run: counters
// become differences, momentary values stay.
func (s Stats) Since(earlier Stats) (Stats, error) {
	if !s.StartedAt.Equal(earlier.StartedAt) {
		return Stats{}, ErrRestarted
	}
	d := s
	takeCounters(&d, earlier)
	d.Seconds = max(s.Seconds-earlier.Seconds, 0)
	return d, nil
}

// Filled adds the entries of every carrier, cause and protocol, so that a script's path to
// what has not happened yet yields 0, not null.
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
