package admin

import "net/netip"

// servicesSchema versions the document of peers --services.
const servicesSchema = "smcgw.services/v1"

// ServiceVerdict is what happens to new connections of a service that a rule with
// action auto selects.
type ServiceVerdict string

// The verdicts: sampling carries a few to learn from and leaves the others
// native, carry carries all, native leaves all native until it is sampled again.
const (
	VerdictSampling ServiceVerdict = "sampling"
	VerdictCarry    ServiceVerdict = "carry"
	VerdictNative   ServiceVerdict = "native"
)

// ServiceVerdicts lists every ServiceVerdict.
func ServiceVerdicts() []ServiceVerdict {
	return []ServiceVerdict{VerdictSampling, VerdictCarry, VerdictNative}
}

// ServiceInfo is what rules with action auto have learned of a service: from the
// connections to it that this host made and that were carried. A verdict is about
// the connections that begin after it.
type ServiceInfo struct {
	// Address and Port are the server's.
	Address netip.Addr     `json:"address"`
	Port    uint16         `json:"port"`
	Verdict ServiceVerdict `json:"verdict"`
	// Reason is the reason of negotiate with which connections stay native.
	Reason string `json:"reason"`
	// Why says what the verdict was made of, Score how many times the bytes made up
	// for what carrying costs: it is worth it from 1 on.
	Why   string  `json:"why"`
	Score float64 `json:"score"`
	// Connections, Bytes of both directions and Moves (reads and writes of the
	// local application's socket) are what the last verdict was made of, or, while
	// sampling, what has been seen.
	Connections uint64 `json:"connections"`
	Bytes       uint64 `json:"bytes"`
	Moves       uint64 `json:"moves"`
	// The quotients of these; BytesPerSecond is of one connection.
	BytesPerConnection float64 `json:"bytes_per_connection"`
	BytesPerMove       float64 `json:"bytes_per_move"`
	BytesPerSecond     float64 `json:"bytes_per_second"`
	// Compared is what carried and native bulk were compared by last, if it was:
	// where native is faster the verdict is native, whatever the score.
	Compared *ServiceRates `json:"compared,omitempty"`
	// SamplesLeft is how many connections may still be carried while sampling.
	SamplesLeft int `json:"samples_left,omitempty"`
	// ExpiresSeconds is when the next samples are taken.
	ExpiresSeconds float64 `json:"expires_seconds,omitempty"`
	// Native counts the connections that were left native.
	Native uint64 `json:"native"`
}

// ServiceRates compares connections that have ended, each with 1 MiB at least, by
// what one of them moved a second from its beginning to its end.
type ServiceRates struct {
	CarriedConnections    uint64  `json:"carried_connections"`
	CarriedBytesPerSecond float64 `json:"carried_bytes_per_second"`
	NativeConnections     uint64  `json:"native_connections"`
	NativeBytesPerSecond  float64 `json:"native_bytes_per_second"`
}

// ServiceList is the document of peers --services.
type ServiceList struct {
	Schema   string        `json:"schema"`
	Services []ServiceInfo `json:"services"`
}
