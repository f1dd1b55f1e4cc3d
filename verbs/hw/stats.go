package hw

// Transport is the family of protocols of an adapter (enum ibv_transport_type, same numbers).
type Transport int8

// The transports. RoCE counts as InfiniBand.
const (
	TransportUnknown    Transport = -1
	TransportInfiniBand Transport = 0
	TransportIWARP      Transport = 1
)

// Stats are counters of a device since Open, and its objects now.
type Stats struct {
	QPs, CQs, AHs, MRs, PDs int // open now
	SRQs                    int // 0: the device has none, and documents of devices have their number

	Posted      uint64 // work requests handed to the library
	PostErrors  uint64 // work requests that the provider refused
	Completions uint64 // fetched from the library
	Strays      uint64 // completions of no work request that the device knows
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
