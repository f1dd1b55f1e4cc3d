package report

import (
	"maps"
	"net/netip"
	"time"
)

// ConfigRefused is what a gateway is degraded by while the configuration file is another
// than what is in force. The other words of Status.Degraded are reasons of negotiate.
const ConfigRefused = "config_refused"

// GuardTripped is what a gateway is degraded by while its guard keeps connections native.
const GuardTripped = "guard_tripped"

// NoSteering is what a gateway is degraded by on a kernel that cannot steer: it serves
// programs with the library, and no other connection.
const NoSteering = "no_steering"

// Status is the answer to "what is the gateway doing". The admin server sets
// Schema; the source of the status need not.
type Status struct {
	Schema string `json:"schema"`
	// Mode is the mode in force: off while the kill switch is set, whatever
	// the configuration says.
	Mode          Mode    `json:"mode"`
	Version       string  `json:"version"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Flows are the carried connections now, FlowsTotal those since the start.
	Flows      map[Carrier]int    `json:"flows"`
	FlowsTotal map[Carrier]uint64 `json:"flows_total"`
	// FallbacksTotal counts connections that stayed or became native, by reason.
	FallbacksTotal map[string]uint64 `json:"fallbacks_total"`
	// ResetsTotal counts carried connections that did not end in order, by reason.
	ResetsTotal map[string]uint64     `json:"resets_total"`
	BytesTotal  map[Carrier]ByteCount `json:"bytes_total"`
	Memory      MemoryUse             `json:"memory"`
	// FlowLimit is how many connections may be carried at once.
	FlowLimit FlowLimit `json:"flow_limit"`
	// LogDropped counts lines of the log that could not be written: a full disk, a
	// reader that does not read.
	LogDropped uint64 `json:"log_dropped,omitempty"`
	// UDP are the pairs of ends between which datagrams are carried; the numbers above are
	// those of TCP.
	UDP ProtoStats `json:"udp"`
	// InProcess is about connections between programs that have the library.
	InProcess InProcess `json:"in_process"`
	// Peers is the number of hosts that Control.Peers lists.
	Peers int `json:"peers"`
	// Degraded names why less than the configuration asks for is done, as a
	// reason of negotiate (app_leg_blocked, device_failed), or [ConfigRefused]: Notes tells.
	// Empty when all is well.
	Degraded []string `json:"degraded,omitempty"`
	// Notes are sentences about devices that do not work as configured, or are not there, and
	// about rules and peers that connections stay native for.
	Notes []string `json:"notes,omitempty"`
	// BlockedLegs lists where the host drops what the gateway passes to applications.
	BlockedLegs []BlockedLegs `json:"blocked_legs,omitempty"`
	// Draining tells how far this gateway's drain is, Predecessor that of the one it
	// has taken over from; absent if none.
	Draining    *DrainInfo `json:"draining,omitempty"`
	Predecessor *DrainInfo `json:"predecessor,omitempty"`
}

// BlockedLegs is a device and family on which connections are native because what the
// gateway passes to applications does not arrive.
type BlockedLegs struct {
	Device string `json:"device,omitempty"`
	Family string `json:"family,omitempty"` // ipv4 or ipv6
	// At is where: output (the application's own packets), input (a rule or the
	// reverse-path filter before the socket), established (a rule about what follows
	// the first packets); keeper: on every device, since the process that makes the
	// sockets is gone.
	At string `json:"at"`
}

// ByteCount counts application bytes of both directions: Tx from the local
// application to the peer, Rx towards it.
type ByteCount struct {
	Tx uint64 `json:"tx"`
	Rx uint64 `json:"rx"`
}

// FlowLimit bounds the connections that are carried at once. Now is below
// Configured where the process may not have a descriptor for each.
type FlowLimit struct {
	Now        int `json:"now"`
	Configured int `json:"configured"`
}

// MemoryUse is the fill of the buffer pool.
type MemoryUse struct {
	UsedBytes  uint64 `json:"used_bytes"`
	LimitBytes uint64 `json:"limit_bytes"`
	// ReservedBytes have been taken from the host: what is used, and what lies ready for
	// the connections of a peer. It is what the shares of peers are made of.
	ReservedBytes uint64 `json:"reserved_bytes"`
}

// ConnInfo describes one connection, carried, ended or left native. Addresses
// are written from the local application's point of view.
type ConnInfo struct {
	ID     uint64         `json:"id"`
	Proto  string         `json:"proto"`
	Side   Side           `json:"side"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// State is a name of docs/ARCHITECTURE.md "Names":
	// offered, negotiating, carrying, native...
	State   string  `json:"state"`
	Carrier Carrier `json:"carrier"`
	// Reason is the stable name of a negotiate reason, empty when there is
	// none: a flow on the carrier it was meant for.
	Reason string `json:"reason"`
	// DecidedBy is local or remote when Reason is set: the side that decided.
	DecidedBy string `json:"decided_by,omitempty"`
	// Demoted says why a connection whose carrier is relay has left another one:
	// a reason of negotiate, [DemotedByOperator] or [DemotedByPeer].
	Demoted string `json:"demoted,omitempty"`
	TxBytes uint64 `json:"tx_bytes"`
	RxBytes uint64 `json:"rx_bytes"`
	// AgeSeconds is 0 of a native connection: the gateway sees its beginning only.
	AgeSeconds float64 `json:"age_seconds"`
	// TxRate and RxRate are bytes a second, where they were measured.
	TxRate float64 `json:"tx_bytes_per_second,omitempty"`
	RxRate float64 `json:"rx_bytes_per_second,omitempty"`
	// Way is how the bytes go: native, in-process or steered.
	Way Way `json:"way"`
	// Program is whose socket the connection has at this end; nil: not asked for, or not known.
	Program *Program `json:"program,omitempty"`
	// InProcess is what is known of an end whose program has the library.
	InProcess *InProcessEnd `json:"in_process,omitempty"`
	// Pair is the queue pair that carries, where it was asked for.
	Pair *PairInfo `json:"pair,omitempty"`
	// End says how a connection of the history ended, EndedAt when: of a native one, when
	// that was decided.
	End     End       `json:"end,omitempty"`
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// Program is a process that has the socket of a connection.
type Program struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	UID    uint32 `json:"uid"`
	Cgroup string `json:"cgroup"`
}

// PairInfo is the queue pair of a connection, and the buffers at this end.
type PairInfo struct {
	// QPN is the number of the queue pair: that of "rdma res show qp" on an adapter.
	QPN uint32 `json:"qpn"`
	// Sent counts the bytes given to the queue pair, Acknowledged those of them that the
	// peer has, Received those that came and Consumed those that the application took.
	Sent         uint64 `json:"sent_bytes"`
	Acknowledged uint64 `json:"acknowledged_bytes"`
	Received     uint64 `json:"received_bytes"`
	Consumed     uint64 `json:"consumed_bytes"`
	// Unsent are bytes of the application that wait here, RingBytes is the size of the
	// receive ring.
	Unsent    int `json:"unsent_bytes"`
	RingBytes int `json:"ring_bytes"`
	// Window is how many bytes the peer lets the next message have, Credits how many
	// messages it lets come; Blocked says why none may go now.
	Window  int    `json:"window_bytes"`
	Credits int    `json:"credits"`
	Blocked string `json:"blocked,omitempty"`
	// RoundTripSeconds and Retransmits are of the soft device, which sends packets again
	// itself; 0 elsewhere.
	RoundTripSeconds float64 `json:"round_trip_seconds,omitempty"`
	Retransmits      uint64  `json:"retransmits,omitempty"`
}

// End is how a connection of the history ended.
type End string

// The ends: closed after FIN from both sides, aborted by a reset of either
// side or of the gateway (Reason tells), native when the kernel went on alone.
const (
	EndClosed  End = "closed"
	EndAborted End = "aborted"
	EndNative  End = "native"
)

// Values of ConnInfo.DecidedBy.
const (
	DecidedLocal  = "local"
	DecidedRemote = "remote"
)

// DecidedBy returns the side that decided.
func DecidedBy(remote bool) string {
	if remote {
		return DecidedRemote
	}
	return DecidedLocal
}

// Why a connection has left another carrier for the relay, besides the reasons of package
// negotiate that name what failed.
const (
	DemotedByOperator = "operator" // the admin socket was asked to
	DemotedByPeer     = "peer"     // the peer's gateway began
)

// PeerInfo is what is known of one peer address.
type PeerInfo struct {
	Address netip.Addr `json:"address"`
	// Port is set when the entry is about one service of the peer only.
	Port  uint16    `json:"port,omitempty"`
	State PeerState `json:"state"`
	// Reason is why the peer is left native, or the latest connection with it was; empty: it was carried.
	Reason string `json:"reason"`
	// ExpiresSeconds is when an incapable or blackholed entry is forgotten.
	ExpiresSeconds float64 `json:"expires_seconds,omitempty"`
	// Version is that of the peer's program, Mode its mode, as the last handshake with its gateway said; empty: there
	// was none. A gateway whose mode is not enforce takes part in none, so State and Reason say when that has changed.
	Version string `json:"version,omitempty"`
	Mode    Mode   `json:"mode,omitempty"`
	// Flows is the number of flows carried with this peer now.
	Flows int `json:"flows"`
	// Carriers are those proven with this peer, CarriersFailed those that are left
	// alone for a while because connections had to leave them.
	Carriers       []Carrier `json:"carriers,omitempty"`
	CarriersFailed []Carrier `json:"carriers_failed,omitempty"`
	// Use is what the address holds of what it could take from others.
	Use PeerUse `json:"use,omitzero"`
}

// PeerUse is what an address holds of what it may have no more than its share of
// (limits.peer_share).
type PeerUse struct {
	// Begun are the connections that it has begun, Handshakes those of them that
	// are not carried yet.
	Begun      int `json:"begun"`
	Handshakes int `json:"handshakes"`
	// MemoryBytes is registered for it.
	MemoryBytes uint64 `json:"memory_bytes"`
	// ShmPeers are the peers of the shm device that were met for it.
	ShmPeers int `json:"shm_peers"`
}

// PeerState is the summary of what is known of a peer.
type PeerState string

// The peer states: capable has answered as a gateway, stopped had, and answers no more,
// incapable has declined or failed for a while, blackholed lost SYNs with the option, unknown
// is everything else that is remembered.
const (
	PeerCapable    PeerState = "capable"
	PeerStopped    PeerState = "stopped"
	PeerIncapable  PeerState = "incapable"
	PeerBlackholed PeerState = "blackholed"
	PeerUnknown    PeerState = "unknown"
)

// peerStates lists every PeerState.
func peerStates() []PeerState {
	return []PeerState{PeerCapable, PeerStopped, PeerIncapable, PeerBlackholed, PeerUnknown}
}

// VersionInfo is the document of version.
type VersionInfo struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Kernel  string `json:"kernel"`
	// Daemon is the version of the running daemon, when one was asked.
	Daemon string `json:"daemon,omitempty"`
}

// Filled gives the maps that scripts look into their entries: a jq path into
// a carrier that has carried nothing yet is 0, not null.
func (st Status) Filled() Status {
	st.Flows = withCarriers(st.Flows)
	st.FlowsTotal = withCarriers(st.FlowsTotal)
	st.BytesTotal = withCarriers(st.BytesTotal)
	st.UDP = (&Snapshot{UDP: st.UDP}).wholeUDP()
	if st.FallbacksTotal == nil {
		st.FallbacksTotal = map[string]uint64{}
	}
	return st
}

// withCarriers copies m and adds the carriers every gateway has.
func withCarriers[V any](m map[Carrier]V) map[Carrier]V {
	var zero V
	out := map[Carrier]V{CarrierShm: zero, CarrierHW: zero, CarrierSoft: zero, CarrierRelay: zero}
	maps.Copy(out, m)
	return out
}
