package negotiate

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

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

// IBEndpoint is the address of a queue pair on an InfiniBand port. Unlike a RoCE endpoint it has no IP address. The
// receiver asks its subnet administrator for the path to the sender's address, and takes the endpoint only if it agrees
// with that path.
type IBEndpoint struct {
	// GID is the port's GID, and LID its unicast address on the switches, 1 to 0xbfff.
	GID [16]byte
	LID uint16
	// PKey is the partition of the queue pair, with bit 15 set if the port is a full member. Two queue pairs of one
	// partition can talk if at least one of their ports is.
	PKey uint16
	// MTU is the path MTU in bytes that the sender can use, a power of two from 256 to 4096.
	MTU uint16
	// SL is the service level the sender uses, 0 to 15.
	SL uint8
	// QPN and PSN are 24-bit numbers.
	QPN uint32
	PSN uint32
}

const (
	linkLayerAt = 16 + 2 + 2 + 2 + 1
	ibLen       = linkLayerAt + 1 + 4 + 4
	// linkInfiniBand is the InfiniBand link layer. Offers of other link layers have another format and are skipped.
	linkInfiniBand = 1

	maxUnicastLID = 0xbfff
	maxSL         = 15
)

func (e *IBEndpoint) append(b []byte) []byte {
	b = append(b, e.GID[:]...)
	b = binary.BigEndian.AppendUint16(b, e.LID)
	b = binary.BigEndian.AppendUint16(b, e.PKey)
	b = binary.BigEndian.AppendUint16(b, e.MTU)
	b = append(b, e.SL, linkInfiniBand)
	b = binary.BigEndian.AppendUint32(b, e.QPN)
	return binary.BigEndian.AppendUint32(b, e.PSN)
}

// parse parses the endpoint. known is false if it has another link layer.
func (e *IBEndpoint) parse(v []byte) (known bool, err error) {
	if len(v) <= linkLayerAt {
		return false, fmt.Errorf("infiniband endpoint of %d bytes: %w", len(v), ErrMalformed)
	}
	if v[linkLayerAt] != linkInfiniBand {
		return false, nil
	}
	if err := clc.Want(v, ibLen); err != nil {
		return false, err
	}
	*e = IBEndpoint{
		GID: [16]byte(v), LID: binary.BigEndian.Uint16(v[16:]), PKey: binary.BigEndian.Uint16(v[18:]),
		MTU: binary.BigEndian.Uint16(v[20:]), SL: v[22],
		QPN: binary.BigEndian.Uint32(v[24:]), PSN: binary.BigEndian.Uint32(v[28:]),
	}
	if e.LID == 0 || e.LID > maxUnicastLID || e.PKey&^wholeMember == 0 || e.SL > maxSL ||
		e.QPN > clc.Max24 || e.PSN > clc.Max24 || !clc.ValidMTU(e.MTU) {
		return false, fmt.Errorf("infiniband endpoint out of range: %w", ErrMalformed)
	}
	return true, nil
}

// Rest decides for how long a carrier that keeps failing is not used. The proof is only one packet: a carrier can pass
// it every time and still be unable to carry. A Rest covers one carrier to one peer. It is a pure value; the zero value
// has no failures.
//
//	works ── restAfter failures within restWindow ──► rests ── its pause ──► works, and on trial
//	  ▲                                                 ▲                        │
//	  └── good for as long as the pause ────────────────┼────────────────────────┤
//	                                                    └── fails: pause × 2 ────┘
type Rest struct {
	failures int       // in the current window
	first    time.Time // the first of them
	last     time.Time
	pause    time.Duration // the last pause; 0 if there was none
	until    time.Time     // the end of that pause
}

const (
	// restTogether is the time within which failures count as one. A device that fails takes all its connections with
	// it, and each of them notices only when it next has something to send.
	restTogether = 2 * time.Second
	restWindow   = time.Minute
	restAfter    = 3
	// restPause is the first pause; each further one is twice as long, up to restMost.
	restPause = 10 * time.Second
	restMost  = 10 * time.Minute
)

// Failed returns the state after a connection has left the carrier at now because the carrier failed.
func (r Rest) Failed(now time.Time) Rest {
	if r.failures > 0 && now.Sub(r.last) < restTogether || r.Resting(now) {
		return r
	}
	if r.pause > 0 && now.Sub(r.until) < r.pause { // on trial
		return r.rest(now, min(2*r.pause, restMost))
	}
	if r.failures == 0 || now.Sub(r.first) > restWindow {
		r = Rest{first: now}
	}
	r.failures++
	r.last = now
	if r.failures == restAfter {
		return r.rest(now, restPause)
	}
	return r
}

func (r Rest) rest(now time.Time, pause time.Duration) Rest {
	return Rest{pause: pause, until: now.Add(pause)}
}

// Resting reports whether the carrier must not be used at now.
func (r Rest) Resting(now time.Time) bool { return now.Before(r.until) }

// Over reports whether r can be forgotten at now.
func (r Rest) Over(now time.Time) bool {
	return now.Sub(r.first) > restWindow && now.Sub(r.until) >= r.pause
}

// A carrier TLV is kind(1), flags(1), rsocket connection data(40), then the endpoint, whose form depends on the kind.
const (
	// MaxCarriers bounds the carriers of one message.
	MaxCarriers = 4

	carrierFixedLen = 2 + connDataLen
	shmFixedLen     = 16 + 4 // key, QPN; the name follows to the end of the TLV
	roceLen         = 16 + 2 + 2 + 4 + 4
	partitionLen    = 2

	wholeMember  = 0x8000 // full member of a partition (IBTA vol. 1, 10.9.1.1)
	everyoneElse = 0xffff // the default partition

	flagMixed = 1 // see CarrierOffer.Mixed; other flags are ignored
)

// AppendCarriers appends the TLVs of cs.
func AppendCarriers(b []byte, cs []CarrierOffer) []byte {
	for i := range cs {
		b = appendCarrier(b, &cs[i])
	}
	return b
}

func appendCarrier(b []byte, c *CarrierOffer) []byte {
	v := append([]byte{uint8(c.Kind), c.flags()}, c.Conn[:]...)
	switch c.Kind {
	case CarrierSHM:
		v = append(v, c.SHM.Key[:]...)
		v = binary.BigEndian.AppendUint32(v, c.SHM.QPN)
		v = append(v, c.SHM.Name...)
	case CarrierIB:
		v = c.IB.append(v)
	default:
		v = append(v, c.RoCE.GID[:]...)
		v = binary.BigEndian.AppendUint16(v, c.RoCE.UDPPort)
		v = binary.BigEndian.AppendUint16(v, c.RoCE.MTU)
		v = binary.BigEndian.AppendUint32(v, c.RoCE.QPN)
		v = binary.BigEndian.AppendUint32(v, c.RoCE.PSN)
	}
	b = clc.AppendTLV(b, clc.TLVCarrier, v)
	if c.Kind == CarrierSoft && c.RoCE.PKey != 0 {
		b = clc.AppendTLV(b, clc.TLVPartition, binary.BigEndian.AppendUint16(nil, c.RoCE.PKey))
	}
	return b
}

func (c *CarrierOffer) flags() uint8 {
	if c.Mixed && c.Kind.IsRoCE() {
		return flagMixed
	}
	return 0
}

// Answers reports whether c is a valid answer to o, the offer of the same kind; nil if there was none.
func (c *CarrierOffer) Answers(o *CarrierOffer) bool {
	return o != nil && c.Kind == o.Kind && (!c.Mixed || o.Mixed && c.RoCE.PKey == 0)
}

// SetCarrier parses one TLV that AppendCarriers has written.
func SetCarrier(cs *[]CarrierOffer, typ uint16, v []byte) error {
	if typ == clc.TLVPartition {
		return setPartition(*cs, v)
	}
	return addCarrier(cs, v)
}

// addCarrier parses one carrier TLV. It skips an unknown kind or link layer, since the receiver need not use every
// offer.
func addCarrier(cs *[]CarrierOffer, v []byte) error {
	if len(v) < carrierFixedLen {
		return fmt.Errorf("carrier of %d bytes: %w", len(v), ErrMalformed)
	}
	c := CarrierOffer{Kind: CarrierKind(v[0]), Conn: ConnData(v[2:carrierFixedLen])}
	known := true
	var err error
	switch c.Kind {
	case CarrierSHM:
		err = c.SHM.parse(v[carrierFixedLen:])
	case CarrierSoft, CarrierHW:
		err = c.RoCE.parse(v[carrierFixedLen:])
		c.Mixed = v[1]&flagMixed != 0
		if err == nil && c.Mixed && c.RoCE.UDPPort != clc.RoCEPort {
			err = fmt.Errorf("mixed ends at udp port %d: %w", c.RoCE.UDPPort, ErrMalformed)
		}
	case CarrierIB:
		known, err = c.IB.parse(v[carrierFixedLen:])
	case CarrierRelay: // needs no offer
		return fmt.Errorf("relay as an offer: %w", ErrMalformed)
	default:
		known = false
	}
	if err != nil || !known {
		return err
	}
	if len(*cs) == MaxCarriers || FindCarrier(*cs, c.Kind) != nil {
		return fmt.Errorf("carrier %s too many: %w", c.Kind, ErrMalformed)
	}
	*cs = append(*cs, c)
	return nil
}

// setPartition parses the partition key of the soft carrier that precedes it. Without such a carrier it belongs to a
// carrier of another version and is ignored.
func setPartition(cs []CarrierOffer, v []byte) error {
	if err := clc.Want(v, partitionLen); err != nil {
		return err
	}
	k := binary.BigEndian.Uint16(v)
	if k <= wholeMember || k == everyoneElse {
		return fmt.Errorf("partition key %#04x: %w", k, ErrMalformed)
	}
	if c := FindCarrier(cs, CarrierSoft); c != nil {
		c.RoCE.PKey = k
	}
	return nil
}

// FindCarrier returns the offer of this kind, or nil.
func FindCarrier(cs []CarrierOffer, k CarrierKind) *CarrierOffer {
	for i := range cs {
		if cs[i].Kind == k {
			return &cs[i]
		}
	}
	return nil
}

func (e *SHMEndpoint) parse(v []byte) error {
	if len(v) < shmFixedLen {
		return fmt.Errorf("shm endpoint of %d bytes: %w", len(v), ErrMalformed)
	}
	e.Key = [16]byte(v)
	e.QPN = binary.BigEndian.Uint32(v[16:])
	e.Name = string(v[shmFixedLen:])
	if !clc.ValidName(e.Name) {
		return fmt.Errorf("shm rendezvous name %q: %w", e.Name, ErrMalformed)
	}
	return nil
}

func (e *RoCEEndpoint) parse(v []byte) error {
	if err := clc.Want(v, roceLen); err != nil {
		return err
	}
	*e = RoCEEndpoint{
		GID:     [16]byte(v),
		UDPPort: binary.BigEndian.Uint16(v[16:]),
		MTU:     binary.BigEndian.Uint16(v[18:]),
		QPN:     binary.BigEndian.Uint32(v[20:]),
		PSN:     binary.BigEndian.Uint32(v[24:]),
	}
	if e.QPN > clc.Max24 || e.PSN > clc.Max24 || e.UDPPort == 0 || !clc.ValidMTU(e.MTU) {
		return fmt.Errorf("roce endpoint out of range: %w", ErrMalformed)
	}
	return nil
}
