package negotiate

import "strconv"

// CarrierKind names what carries the bytes of a connection. The numbers go over the wire.
type CarrierKind uint8

// The carriers. Relay is the wire leg itself (DATA records); it needs no offer.
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

// OfAdapter tells the carriers of RDMA adapters.
func (k CarrierKind) OfAdapter() bool { return k == CarrierHW || k == CarrierIB }

// IsRoCE tells the carriers that speak RoCEv2, in software or by an adapter.
func (k CarrierKind) IsRoCE() bool { return k == CarrierSoft || k == CarrierHW }

// MarshalText makes carriers appear by name in JSON.
func (k CarrierKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ConnData is the rsocket connection data of one queue pair, as the rsocket package encodes it (40 bytes, all fields in
// network order). It is opaque here.
type ConnData [connDataLen]byte

// connDataLen is the size of struct rs_conn_data.
const connDataLen = 40

// CarrierOffer is one carrier the sender is ready to use for this connection, with the address of the queue pair it made
// for it. Exactly one of SHM, RoCE and IB is meaningful, by Kind.
type CarrierOffer struct {
	Kind CarrierKind
	// Mixed is about ends of both RoCEv2 kinds: in a PROPOSAL a queue pair of the other kind's device may answer, in an
	// ACCEPT it does. Peers that do not know it never answer so.
	Mixed bool
	// Conn is the rsocket connection data of this queue pair; it is per carrier because the keys of the memory are.
	Conn ConnData
	// SHM is the endpoint when Kind is CarrierSHM.
	SHM SHMEndpoint
	// RoCE is the endpoint when Kind is CarrierSoft or CarrierHW.
	RoCE RoCEEndpoint
	// IB is the endpoint when Kind is CarrierIB.
	IB IBEndpoint
}

// SHMEndpoint says where to meet a gateway under the same kernel.
type SHMEndpoint struct {
	// Name is the rendezvous socket's file name in shm_dir: 1 to MaxRendezvousName bytes, no slash, no NUL, no leading dot.
	Name string
	// Key authorises the meeting.
	Key [16]byte
	// QPN is the queue pair of the sender for this connection.
	QPN uint32
}

// RoCEEndpoint is the address of a queue pair on a RoCEv2 device.
type RoCEEndpoint struct {
	GID     [16]byte
	UDPPort uint16
	// MTU is the path MTU in bytes (256 to 4096, a power of two) the sender can use.
	MTU uint16
	// QPN and PSN are 24-bit numbers.
	QPN uint32
	PSN uint32
	// PKey is the partition key that packets to a CarrierSoft queue pair must have, random for each: with bit 15, and the
	// rest neither 0 nor 0x7fff. 0: packets are of the default partition. It travels in a TLV of its own after the
	// carrier, which gateways before it was thought of skip.
	PKey uint16
}
