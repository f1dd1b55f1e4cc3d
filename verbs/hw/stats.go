package hw

// Transport is the family of protocols of an adapter (enum ibv_transport_type, same numbers).
type Transport int8

// The transports. RoCE counts as InfiniBand.
const (
	TransportUnknown    Transport = -1
	TransportInfiniBand Transport = 0
	TransportIWARP      Transport = 1
)

// Stats holds counters of a device since Open, and its current objects.
type Stats struct {
	QPs, CQs, AHs, MRs, PDs int // open now

	Posted      uint64 // work requests passed to the library
	PostErrors  uint64 // work requests that the provider refused
	Completions uint64 // fetched from the library
	Strays      uint64 // completions of unknown work requests
	Overruns    uint64 // completion queues that lost completions
}

// String names the transport.
func (t Transport) String() string {
	switch t {
	case TransportInfiniBand:
		return "InfiniBand"
	case TransportIWARP:
		return "iWARP"
	case TransportUnknown:
	}
	return "an unknown transport"
}
