package admin

import (
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// Control is what the admin server asks of a running gateway. All methods are
// called from ordinary goroutines, several at once, never from an event loop;
// they must return within a second whatever the flows do.
type Control interface {
	reports
	switches
	drains
	successions
}

// reports is the part of [Control] that changes nothing.
type reports interface {
	// Status summarises. Schema may be left empty.
	Status() Status
	// Stats returns the totals since the start. Schema may be left empty.
	Stats() Stats
	// Conns lists the carried flows, or the history of closed ones with
	// q.Closed; q.All adds the history of native ones. Newest first.
	Conns(q ConnQuery) []ConnInfo
	// Peers lists what is known of peers.
	Peers() []PeerInfo
	// Services lists what rules with action auto have learned.
	Services() []ServiceInfo
	// Devices lists the RDMA devices of the configuration.
	Devices() []DeviceInfo
}

// switches is the part of [Control] that changes what becomes of connections.
type switches interface {
	// FlushPeers forgets every remembered refusal and returns their number. What
	// was learned of services is forgotten too.
	FlushPeers() (int, error)
	// Try makes a trial's rule count, until end is called. A [TrialError] says
	// what is wrong with it.
	Try(t Trial) (end func(), err error)
	// Demote has connections leave their queue pairs and go on over the relay, and
	// returns how many it has asked.
	Demote(q DemoteQuery) int
	// SetOff throws or resets the kill switch for new connections. The file
	// that makes it survive a restart is the admin server's business.
	SetOff(off bool) error
	// ResetFlows begins to reset everything that is carried, and returns how many
	// connections that are. What is negotiated is given back.
	ResetFlows() int
}

// drains is the part of [Control] that ends the gateway.
type drains interface {
	// Drain leaves all new connections native and ends the gateway when those it
	// carries have ended, at the latest after timeout; 0: the configuration's. The
	// channel is closed when that is so and the gateway is about to stop. Called
	// again, the earlier end holds.
	Drain(timeout time.Duration) (over <-chan struct{}, err error)
	// Draining tells how far a drain is; nil: there is none.
	Draining() *DrainInfo
}

// successions is the part of [Control] by which another gateway takes over.
type successions interface {
	// Neighbour describes the datapath to a gateway that is to take over; it fails
	// if none can.
	Neighbour() (Neighbour, error)
	// Yield leaves new connections alone and gives up the ports that only one
	// gateway of a host can have; TakeBack undoes it, or what of it was done when it
	// failed. They may take longer than a second.
	Yield() error
	TakeBack() error
}

// MetricsSource is what the collector asks at every scrape.
type MetricsSource interface {
	// Snapshot copies the counters. It has the duties of Control's methods.
	Snapshot() Snapshot
}

// Snapshot is every number the metrics are made of. Counters only grow. Maps
// may be nil and slices empty; a series that is not there is not reported.
type Snapshot struct {
	Mode       config.Mode
	Flows      map[config.Carrier]int
	FlowsTotal map[config.Carrier]uint64
	Fallbacks  []FallbackCount
	Decisions  []DecisionCount
	Demotions  []DemotionCount
	BytesTotal map[config.Carrier]ByteCount
	// Stalls are flows that were reset because they stood still.
	Stalls map[config.Carrier]uint64
	// Flows, FlowsTotal, Fallbacks and BytesTotal above are about TCP; UDP and
	// Datagrams are the same and more about datagrams.
	UDP       ProtoStats
	Datagrams DatagramStats
	// Handshakes holds one histogram per carrier that was negotiated.
	Handshakes map[config.Carrier]HistogramSnapshot
	// Memory is the pool's use by kind: rmb, sndbuf, pooled.
	Memory      map[string]uint64
	MemoryLimit uint64
	// SharesRefused counts by resource how often a peer wanted more than its share.
	SharesRefused map[string]uint64
	Peers         map[PeerState]int
	// Services are those that rules with action auto know of.
	Services map[ServiceVerdict]int
	Maps     []MapUse
	Devices  []DeviceInfo
	Bounds   Bounds
	// Heartbeat is when the datapath last beat, as wall clock time; zero if it
	// never did.
	Heartbeat time.Time
	// Panics are the internal errors that ended one connection each.
	Panics uint64
}

// FallbackCount counts connections that stayed or became native.
type FallbackCount struct {
	Reason string
	Side   config.Side
	Count  uint64
}

// DemotionCount counts connections that left a carrier and went on over the relay.
type DemotionCount struct {
	Carrier config.Carrier
	// Reason is what ConnInfo.Demoted has.
	Reason string
	Count  uint64
}

// DecisionCount counts what the policy decided about new connections.
type DecisionCount struct {
	Action config.Action
	// Rule is the name of the rule, "default" where no rule matched.
	Rule  string
	Count uint64
}

// MapUse is the fill of one eBPF map.
type MapUse struct {
	Map      string
	Entries  uint64
	Capacity uint64
}
