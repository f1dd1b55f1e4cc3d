package negotiate

import "strconv"

// CarrierKind is the kind of a carrier. Its numbers are part of the protocol.
type CarrierKind uint8

// The carriers. CarrierRelay is the wire leg itself (DATA records) and needs no offer.
const (
	CarrierRelay CarrierKind = 0
	CarrierSHM   CarrierKind = 1
	CarrierSoft  CarrierKind = 2
	CarrierHW    CarrierKind = 3
	CarrierIB    CarrierKind = 4
)

// String returns the name shown to users.
func (k CarrierKind) String() string {
	switch k {
	case CarrierRelay:
		return "relay"
	case CarrierSHM:
		return "rdma-shm"
	case CarrierSoft:
		return "rdma-soft"
	case CarrierHW:
		return "rdma-hw"
	case CarrierIB:
		return "rdma-ib"
	}
	return "carrier_" + strconv.Itoa(int(k))
}

// OfAdapter reports whether k is a carrier of an RDMA adapter.
func (k CarrierKind) OfAdapter() bool { return k == CarrierHW || k == CarrierIB }

// IsRoCE reports whether k speaks RoCEv2, in software or with an adapter.
func (k CarrierKind) IsRoCE() bool { return k == CarrierSoft || k == CarrierHW }

// MarshalText makes carriers appear by name in JSON.
func (k CarrierKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ConnData is the rsocket connection data of one queue pair, as the rsocket package encodes it (40 bytes, all fields in
// network order). It is opaque here.
type ConnData [connDataLen]byte

// connDataLen is the size of struct rs_conn_data.
const connDataLen = 40

// CarrierOffer is a carrier that the sender is ready to use for this connection, with the address of the queue pair
// that it made for it. Kind says which one of SHM, RoCE and IB is valid.
type CarrierOffer struct {
	Kind CarrierKind
	// Mixed allows ends of both RoCEv2 kinds: in a PROPOSAL, a queue pair of the other kind's device may answer; in an
	// ACCEPT, it does. Peers that do not know the flag never answer with it.
	Mixed bool
	// Conn is the rsocket connection data of this queue pair. It differs between carriers because the keys of the
	// memory do.
	Conn ConnData
	// SHM is the endpoint when Kind is CarrierSHM.
	SHM SHMEndpoint
	// RoCE is the endpoint when Kind is CarrierSoft or CarrierHW.
	RoCE RoCEEndpoint
	// IB is the endpoint when Kind is CarrierIB.
	IB IBEndpoint
}

// SHMEndpoint says where to meet a gateway on the same kernel.
type SHMEndpoint struct {
	// Name is the rendezvous socket's file name in shm_dir: 1 to MaxRendezvousName bytes, no slash, no NUL, no leading
	// dot.
	Name string
	// Key authorises the rendezvous.
	Key [16]byte
	// QPN is the sender's queue pair for this connection.
	QPN uint32
}

// RoCEEndpoint is the address of a queue pair on a RoCEv2 device.
type RoCEEndpoint struct {
	GID     [16]byte
	UDPPort uint16
	// MTU is the path MTU in bytes that the sender can use, a power of two from 256 to 4096.
	MTU uint16
	// QPN and PSN are 24-bit numbers.
	QPN uint32
	PSN uint32
	// PKey is the partition key that packets to a CarrierSoft queue pair must have: random for each queue pair, with
	// bit 15 set and the rest neither 0 nor 0x7fff. 0 means the default partition. It travels in a TLV of its own
	// behind the carrier, which older gateways skip.
	PKey uint16
}
