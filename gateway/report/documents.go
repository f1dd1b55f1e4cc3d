package report

import (
	"cmp"
	"maps"
	"net/netip"
	"time"
)

// ConfigRefused is the value of Status.Degraded while the configuration file differs from the
// configuration in effect because it was refused. The other values are reasons of negotiate,
// [GuardTripped] and [NoSteering].
const ConfigRefused = "config_refused"

// GuardTripped is the value of Status.Degraded while the guard keeps connections native.
const GuardTripped = "guard_tripped"

// NoSteering is the value of Status.Degraded on a kernel that cannot steer: the gateway
// serves programs with the library, and no other connection.
const NoSteering = "no_steering"

// Status answers "what is the gateway doing". The admin server sets Schema; the source of the
// status need not.
type Status struct {
	Schema string `json:"schema"`
	// Mode is the mode in effect: off while the kill switch is set, whatever the
	// configuration says.
	Mode          Mode    `json:"mode"`
	Version       string  `json:"version"`
	UptimeSeconds float64 `json:"uptime_seconds"`
	// Flows counts the connections carried now, FlowsTotal those carried since the start.
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
	// LogDropped counts lines of the log that could not be written because of a full disk or
	// a reader that does not read.
	LogDropped uint64 `json:"log_dropped,omitempty"`
	// UDP is about the pairs of ends between which datagrams are carried; the numbers above
	// are about TCP.
	UDP ProtoStats `json:"udp"`
	// InProcess is about connections between programs that have the library.
	InProcess InProcess `json:"in_process"`
	// Peers is the number of hosts that Control.Peers lists.
	Peers int `json:"peers"`
	// Degraded names why the gateway does less than the configuration asks for: reasons of
	// negotiate (app_leg_blocked, device_failed), or [ConfigRefused]; Notes has details. It
	// is empty when all is well.
	Degraded []string `json:"degraded,omitempty"`
	// Notes are sentences about devices that do not work as configured or are missing, and
	// about rules and peers whose connections stay native.
	Notes []string `json:"notes,omitempty"`
	// BlockedLegs lists where the host drops what the gateway passes to applications.
	BlockedLegs []BlockedLegs `json:"blocked_legs,omitempty"`
	// Draining is the progress of this gateway's drain, Predecessor that of the gateway it
	// has taken over from; absent if there is none.
	Draining    *DrainInfo `json:"draining,omitempty"`
	Predecessor *DrainInfo `json:"predecessor,omitempty"`
}

// BlockedLegs is a device and address family on which connections are native because what the
// gateway passes to applications does not arrive.
type BlockedLegs struct {
	Device string `json:"device,omitempty"`
	Family string `json:"family,omitempty"` // ipv4 or ipv6
	// At is where it is lost: output (the application's own packets), input (a rule or the
	// reverse-path filter before the socket), established (a rule about packets after the
	// first ones); keeper: on every device, because the process that makes the sockets is
	// gone.
	At string `json:"at"`
}

// ByteCount counts application bytes in both directions: Tx from the local application to the
// peer, Rx towards it.
type ByteCount struct {
	Tx uint64 `json:"tx"`
	Rx uint64 `json:"rx"`
}

// FlowLimit bounds the connections carried at once. Now is below Configured if the process
// cannot have a descriptor for each.
type FlowLimit struct {
	Now        int `json:"now"`
	Configured int `json:"configured"`
}

// MemoryUse is the fill of the buffer pool.
type MemoryUse struct {
	UsedBytes  uint64 `json:"used_bytes"`
	LimitBytes uint64 `json:"limit_bytes"`
	// ReservedBytes is what has been taken from the host: what is used, and what is reserved
	// for further connections of a peer. The shares of peers are computed from it.
	ReservedBytes uint64 `json:"reserved_bytes"`
}

// ConnInfo describes one connection, carried, ended or native. Addresses are from the local
// application's point of view.
type ConnInfo struct {
	ID     uint64         `json:"id"`
	Proto  string         `json:"proto"`
	Side   Side           `json:"side"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// State is a name of docs/ARCHITECTURE.md "Names": offered, negotiating, carrying,
	// native...
	State   string  `json:"state"`
	Carrier Carrier `json:"carrier"`
	// Reason is the stable name of a negotiate reason. It is empty if there is none, as for a
	// flow on its intended carrier.
	Reason string `json:"reason"`
	// DecidedBy is the side that decided, local or remote, if Reason is set.
	DecidedBy string `json:"decided_by,omitempty"`
	// Demoted says why a connection whose carrier is relay left another one: a reason of
	// negotiate, [DemotedByOperator] or [DemotedByPeer].
	Demoted string `json:"demoted,omitempty"`
	TxBytes uint64 `json:"tx_bytes"`
	RxBytes uint64 `json:"rx_bytes"`
	// AgeSeconds is 0 for a native connection, of which the gateway sees only the beginning, and for one in process
	// that is older than the gateway.
	AgeSeconds float64 `json:"age_seconds"`
	// TxRate and RxRate are bytes per second, if they were measured.
	TxRate float64 `json:"tx_bytes_per_second,omitempty"`
	RxRate float64 `json:"rx_bytes_per_second,omitempty"`
	// Way is how the bytes go: native, in-process or steered.
	Way Way `json:"way"`
	// Program is the owner of the connection's socket on this host; nil: not requested, or
	// unknown.
	Program *Program `json:"program,omitempty"`
	// InProcess is what is known about an end whose program has the library.
	InProcess *InProcessEnd `json:"in_process,omitempty"`
	// Pair is the queue pair that carries, if it was requested.
	Pair *PairInfo `json:"pair,omitempty"`
	// End says how a connection in the history ended, EndedAt when; for a native connection,
	// when that was decided.
	End     End       `json:"end,omitempty"`
	EndedAt time.Time `json:"ended_at,omitzero"`
}

// Program is a process that holds the socket of a connection.
type Program struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	UID    uint32 `json:"uid"`
	Cgroup string `json:"cgroup"`
}

// PairInfo describes the queue pair of a connection and the buffers at this end.
type PairInfo struct {
	// QPN is the number of the queue pair, which for an adapter is that of "rdma res show
	// qp".
	QPN uint32 `json:"qpn"`
	// Sent counts the bytes given to the queue pair, Acknowledged those of them that the peer
	// has, Received those that have come, and Consumed those that the application has taken.
	Sent         uint64 `json:"sent_bytes"`
	Acknowledged uint64 `json:"acknowledged_bytes"`
	Received     uint64 `json:"received_bytes"`
	Consumed     uint64 `json:"consumed_bytes"`
	// Unsent is how many bytes of the application are waiting here, RingBytes the size of the
	// receive ring.
	Unsent    int `json:"unsent_bytes"`
	RingBytes int `json:"ring_bytes"`
	// Window is how many bytes the peer allows in the next message, Credits how many messages
	// it allows; Blocked says why none may be sent now.
	Window  int    `json:"window_bytes"`
	Credits int    `json:"credits"`
	Blocked string `json:"blocked,omitempty"`
	// RoundTripSeconds and Retransmits are for the soft device, which retransmits packets
	// itself; 0 elsewhere.
	RoundTripSeconds float64 `json:"round_trip_seconds,omitempty"`
	Retransmits      uint64  `json:"retransmits,omitempty"`
}

// End says how a connection in the history ended.
type End string

// The ends: closed after FIN from both sides, aborted by a reset of either side or of the
// gateway (see Reason), native if the kernel continued alone.
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

// Reasons why a connection left another carrier for the relay, besides the reasons of package
// negotiate that name a failure.
const (
	DemotedByOperator = "operator" // requested through the admin socket
	DemotedByPeer     = "peer"     // started by the peer gateway
)

// PeerInfo is what is known about one peer address.
type PeerInfo struct {
	Address netip.Addr `json:"address"`
	// Port is set if the entry concerns only one service of the peer.
	Port  uint16    `json:"port,omitempty"`
	State PeerState `json:"state"`
	// Reason is why the peer is left native, or why the latest connection with it was; empty
	// if that was carried.
	Reason string `json:"reason"`
	// ExpiresSeconds is the time until an incapable or blackholed entry is forgotten.
	ExpiresSeconds float64 `json:"expires_seconds,omitempty"`
	// Version is the version of the peer's program, Mode its mode, as told in the last
	// handshake with its gateway; empty if there was none. A gateway whose mode is not
	// enforce takes part in no handshake, so State and Reason show when that has changed.
	Version string `json:"version,omitempty"`
	Mode    Mode   `json:"mode,omitempty"`
	// Flows is the number of flows carried with this peer now.
	Flows int `json:"flows"`
	// Carriers are those proven with this peer, CarriersFailed those that are in backoff
	// because connections had to leave them.
	Carriers       []Carrier `json:"carriers,omitempty"`
	CarriersFailed []Carrier `json:"carriers_failed,omitempty"`
	// Use is what the address uses of shared resources.
	Use PeerUse `json:"use,omitzero"`
}

// PeerUse is what an address uses of the resources that are limited by its share
// (limits.peer_share).
type PeerUse struct {
	// Begun counts the connections that it has begun, Handshakes those of them not carried
	// yet.
	Begun      int `json:"begun"`
	Handshakes int `json:"handshakes"`
	// MemoryBytes is the memory registered for it.
	MemoryBytes uint64 `json:"memory_bytes"`
	// ShmPeers counts the peers of the shm device that were met for it.
	ShmPeers int `json:"shm_peers"`
}

// PeerState summarizes what is known about a peer.
type PeerState string

// The peer states: capable has answered as a gateway; stopped used to and no longer does;
// incapable has declined or failed and is left native for a while; blackholed loses SYNs with
// the option; unknown is everything else that is remembered.
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
	// Daemon is the version of the running daemon, if one was asked.
	Daemon string `json:"daemon,omitempty"`
}

// Filled completes the maps that scripts query, so that a jq path to a carrier that has
// carried nothing yet yields 0, not null.
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

// withCarriers copies m and adds the carriers that every gateway has.
func withCarriers[V any](m map[Carrier]V) map[Carrier]V {
	var zero V
	out := map[Carrier]V{CarrierShm: zero, CarrierHW: zero, CarrierSoft: zero, CarrierRelay: zero}
	maps.Copy(out, m)
	return out
}

// DeviceInfo describes one RDMA device of the gateway, or one port of an adapter.
type DeviceInfo struct {
	// Name is the kind and a number: soft0, soft1; for an adapter it is the kernel's name and
	// the number of the port: mlx5_0/1.
	Name    string      `json:"name"`
	Kind    DeviceKind  `json:"kind"`
	Carrier Carrier     `json:"carrier"`
	State   DeviceState `json:"state"`
	// Error is why the device is not active.
	Error string `json:"error,omitempty"`
	// Note is what operators should know about a device that works.
	Note string `json:"note,omitempty"`
	// UDPPort and GIDs (IPv4 addresses mapped) are where peers reach the device; shm has
	// neither.
	UDPPort uint16       `json:"udp_port,omitempty"`
	GIDs    []netip.Addr `json:"gids,omitempty"`
	// MTU is the path MTU in bytes.
	MTU    int          `json:"mtu,omitempty"`
	Limits DeviceLimits `json:"limits,omitzero"`
	// Use holds what exists now, Counters what has happened since the start. Their names
	// depend on the kind.
	Use      map[string]uint64 `json:"use,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// DeviceLimits are the maximum capabilities of a device (ibv_query_device).
type DeviceLimits struct {
	Vectors    int    `json:"vectors"`
	MaxQP      int    `json:"max_qp"`
	MaxQPWR    int    `json:"max_qp_wr"`
	MaxMR      int    `json:"max_mr"`
	MaxMRSize  uint64 `json:"max_mr_size"`
	MaxMsgSize uint64 `json:"max_msg_size"`
}

// DeviceState says whether a device can be used.
type DeviceState string

// The device states: active works, down has no network now, failed could not be used, absent
// is not on this host or not in this version.
const (
	DeviceActive DeviceState = "active"
	DeviceDown   DeviceState = "down"
	DeviceFailed DeviceState = "failed"
	DeviceAbsent DeviceState = "absent"
)

// DrainSchema is the schema of [DrainInfo].
const DrainSchema = "smcgw.drain/v1"

// DrainInfo is the progress of a drain.
type DrainInfo struct {
	Schema string `json:"schema"`
	// Flows counts the connections still carried, Lingering those that have ended but whose
	// application has not yet taken what the kernel holds for it.
	Flows     int `json:"flows"`
	Lingering int `json:"lingering"`
	// RemainingSeconds is the time left until the connections still carried are reset.
	RemainingSeconds float64 `json:"remaining_seconds"`
	// Done is set in the last of these documents: the gateway is ending. Flows and Lingering
	// then count the connections that are reset.
	Done bool `json:"done"`
}

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

// HistorySize is the number of connections in each history of a gateway. For TCP and for UDP
// there is one of those that were carried and have ended, and one of those that stayed
// native.
const HistorySize = 1024

// ConnQuery selects connections: those carried now, unless something else is requested.
type ConnQuery struct {
	// Closed requests the carried connections that have ended, Native those that stayed
	// native, as far back as the histories go ([HistorySize]); All requests these and the
	// connections carried now.
	Closed, Native, All bool
	// Details requests ConnInfo.Pair.
	Details bool
	// Programs requests ConnInfo.Program, which requires a search of the host's processes.
	Programs bool
	// Filter is what all returned connections must match.
	Filter ConnFilter
}

// Live reports whether connections carried now are requested.
func (q ConnQuery) Live() bool { return q.All || !q.Closed && !q.Native }

// Ended reports whether the history of carried connections is requested.
func (q ConnQuery) Ended() bool { return q.All || q.Closed }

// Natives reports whether the history of native connections is requested.
func (q ConnQuery) Natives() bool { return q.All || q.Native }

// ConnFilter selects connections: every field that is set must match. Texts are compared to
// the values of [ConnInfo].
type ConnFilter struct {
	// Port is the port of either end, Peer the address of the other host.
	Port    uint16       `json:"port,omitempty"`
	Peer    netip.Prefix `json:"peer,omitzero"`
	Carrier Carrier      `json:"carrier,omitempty"`
	// Reason is why a connection is native, was reset, or left its carrier.
	Reason string `json:"reason,omitempty"`
	Way    Way    `json:"way,omitempty"`
	End    End    `json:"end,omitempty"`
}

// Matches reports whether a connection is selected.
func (f ConnFilter) Matches(c *ConnInfo) bool {
	return (f.Port == 0 || f.Port == c.Local.Port() || f.Port == c.Remote.Port()) &&
		(!f.Peer.IsValid() || f.Peer.Contains(c.Remote.Addr().Unmap())) &&
		(f.Carrier == CarrierNone || f.Carrier == c.Carrier) &&
		(f.Reason == "" || f.Reason == c.Reason || f.Reason == c.Demoted) &&
		(f.Way == "" || f.Way == cmp.Or(c.Way, c.way())) && (f.End == "" || f.End == c.End)
}
