package resolve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// defaultDatagramPort is the UDP port of the resolution unless another one is configured or announced.
const defaultDatagramPort = 4790

// Sizes of the messages on the datagram port. Each message is one UDP datagram (docs/PROTOCOL.md "Resolution").
const (
	// minQueryLen is the least size of a RESOLVE, which is padded to it. Every answer is shorter, so a forged source
	// address gives no amplification.
	minQueryLen = 512
	// MaxQueryLen is the largest size of a RESOLVE; no path fragments it.
	MaxQueryLen = 1200
	// maxAnswerTTL bounds the time for which an answer can claim to be valid.
	maxAnswerTTL = 24 * time.Hour
)

// QueryNonce pairs a query with its answer. It is secret: a host that repeats it has read what was sent to its address.
type QueryNonce [16]byte

// Resolve asks the gateway of a host how to carry datagrams to it, and says how they can be carried back.
type Resolve struct {
	// Nonce comes first and is repeated in the answer.
	Nonce QueryNonce
	// MinVersion and MaxVersion are the range of versions that the sender speaks.
	MinVersion, MaxVersion uint8
	// GatewayID identifies the sender; it is random for each start.
	GatewayID [16]byte
	// HostID identifies the sender's kernel; zero if the sender does not tell.
	HostID [16]byte
	// Target is the address to which the query is sent. If the receiver sees another one, the addresses are translated.
	Target netip.AddrPort
	// Cookie repeats that of a REFUSED; zero if there was none.
	Cookie Cookie
	// Offers are the sender's queue pairs in its order of preference: at most MaxCarriers, one of each kind.
	Offers []UDOffer
}

// Resolved is the answer of a gateway that accepts datagrams from the sender of the query.
type Resolved struct {
	// Version is the version that both sides use from here on; it travels in the header.
	Version uint8
	Nonce   QueryNonce
	// GatewayID identifies the sender, HostID its kernel (zero if the sender does not tell).
	GatewayID [16]byte
	HostID    [16]byte
	// Observed is where the query came from and the answer goes to. If the receiver has another address, the addresses
	// are translated.
	Observed netip.AddrPort
	// TTL is how long the answer is valid; whole seconds on the wire, rounded down, at most maxAnswerTTL.
	TTL time.Duration
	// Offers are the sender's queue pairs: 1 to MaxCarriers.
	Offers []UDOffer
}

// Refused is the answer of a gateway that accepts no datagrams from the sender of the query.
type Refused struct {
	Nonce QueryNonce
	// Reason may be a number that this version does not know, but is never zero.
	Reason negotiate.Reason
	// TTL is for how long asking again is useless; 0 if not told.
	TTL time.Duration
	// Cookie, if not zero, is to be sent in a repetition of the query.
	Cookie Cookie
}

const (
	resolveTLVs  = clc.TLVSet(1<<2 | 1<<3 | 1<<4 | 1<<12 | 1<<13 | 1<<14 | 1<<18)
	resolvedTLVs = clc.TLVSet(1<<3 | 1<<4 | 1<<12 | 1<<13 | 1<<14 | 1<<15)
	refusedTLVs  = clc.TLVSet(1<<10 | 1<<12 | 1<<15 | 1<<18)
)

// AppendResolve appends r without a MAC, padded to 512 bytes.
func AppendResolve(b []byte, r *Resolve) []byte {
	start := len(b)
	b = clc.AppendHeader(b, clc.TypeResolve, r.MinVersion)
	b = clc.AppendTLV(b, clc.TLVQueryNonce, r.Nonce[:])
	b = clc.AppendTLV(b, clc.TLVVersions, []byte{r.MinVersion, r.MaxVersion})
	b = clc.AppendIdentity(b, r.GatewayID, r.HostID, 0)
	b = appendAddress(b, r.Target)
	b = appendCookie(b, r.Cookie)
	for i := range r.Offers {
		b = appendUDOffer(b, &r.Offers[i])
	}
	if n := len(b) - start; n < minQueryLen {
		b = clc.AppendTLV(b, clc.TLVPadding, make([]byte, max(minQueryLen-n-clc.TLVHeaderLen, 0)))
	}
	return clc.EndMessage(b, start)
}

// appendResolved appends r without a MAC.
func appendResolved(b []byte, r *Resolved) []byte {
	start := len(b)
	b = clc.AppendHeader(b, clc.TypeResolved, r.Version)
	b = clc.AppendTLV(b, clc.TLVQueryNonce, r.Nonce[:])
	b = clc.AppendIdentity(b, r.GatewayID, r.HostID, 0)
	b = appendAddress(b, r.Observed)
	b = appendTTL(b, r.TTL)
	for i := range r.Offers {
		b = appendUDOffer(b, &r.Offers[i])
	}
	return clc.EndMessage(b, start)
}

// encodeRefused encodes r without a MAC.
func encodeRefused(r Refused) []byte {
	b := clc.AppendHeader(nil, clc.TypeRefused, clc.Version)
	b = clc.AppendTLV(b, clc.TLVQueryNonce, r.Nonce[:])
	b = clc.AppendTLV(b, clc.TLVReason, []byte{uint8(r.Reason)})
	if r.TTL > 0 {
		b = appendTTL(b, r.TTL)
	}
	b = appendCookie(b, r.Cookie)
	return clc.EndMessage(b, 0)
}

// parseResolve parses a datagram as a RESOLVE. It must not be shorter than its answer could be.
func parseResolve(b []byte) (Resolve, error) {
	_, tlvs, err := datagram(b, clc.TypeResolve)
	if err != nil {
		return Resolve{}, err
	}
	if len(b) < minQueryLen || len(b) > MaxQueryLen {
		return Resolve{}, fmt.Errorf("clc resolve of %d bytes: %w", len(b), clc.ErrMalformed)
	}
	var r Resolve
	if err := clc.Read(clc.TypeResolve, tlvs, resolveTLVs, r.set, clc.TLVVersions, clc.TLVGatewayID, clc.TLVAddress); err != nil {
		return Resolve{}, err
	}
	return r, nil
}

func (r *Resolve) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVQueryNonce:
		return clc.SetID((*[16]byte)(&r.Nonce), v)
	case clc.TLVVersions:
		return clc.SetVersions(v, &r.MinVersion, &r.MaxVersion)
	case clc.TLVAddress:
		return setAddress(&r.Target, v)
	case clc.TLVCookie:
		return clc.SetID((*[16]byte)(&r.Cookie), v)
	case clc.TLVUDOffer:
		return addUDOffer(&r.Offers, v)
	}
	return clc.SetIdentity(typ, v, &r.GatewayID, &r.HostID, nil)
}

// ParseResolved parses a datagram as a RESOLVED.
func ParseResolved(b []byte) (Resolved, error) {
	h, tlvs, err := datagram(b, clc.TypeResolved)
	if err != nil {
		return Resolved{}, err
	}
	r := Resolved{Version: h.Version}
	if err := clc.Read(clc.TypeResolved, tlvs, resolvedTLVs, r.set, clc.TLVGatewayID, clc.TLVAddress, clc.TLVTTL); err != nil {
		return Resolved{}, err
	}
	if len(r.Offers) == 0 {
		return Resolved{}, fmt.Errorf("clc resolved without a known offer: %w", clc.ErrMalformed)
	}
	return r, nil
}

func (r *Resolved) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVQueryNonce:
		return clc.SetID((*[16]byte)(&r.Nonce), v)
	case clc.TLVAddress:
		return setAddress(&r.Observed, v)
	case clc.TLVTTL:
		return setTTL(&r.TTL, v)
	case clc.TLVUDOffer:
		return addUDOffer(&r.Offers, v)
	}
	return clc.SetIdentity(typ, v, &r.GatewayID, &r.HostID, nil)
}

// ParseRefused parses a datagram as a REFUSED.
func ParseRefused(b []byte) (Refused, error) {
	_, tlvs, err := datagram(b, clc.TypeRefused)
	if err != nil {
		return Refused{}, err
	}
	var r Refused
	if err := clc.Read(clc.TypeRefused, tlvs, refusedTLVs, r.set, clc.TLVReason); err != nil {
		return Refused{}, err
	}
	return r, nil
}

func (r *Refused) set(typ uint16, v []byte) error {
	switch typ {
	case clc.TLVQueryNonce:
		return clc.SetID((*[16]byte)(&r.Nonce), v)
	case clc.TLVTTL:
		return setTTL(&r.TTL, v)
	case clc.TLVCookie:
		return clc.SetID((*[16]byte)(&r.Cookie), v)
	}
	return clc.SetReason(&r.Reason, v)
}

// QueryNonceOf returns the nonce of a datagram that has the size and the beginning of a RESOLVE, even if this version
// cannot parse the rest: such a query may be refused. Nothing else is ever answered.
func QueryNonceOf(b []byte) (QueryNonce, bool) {
	_, _, err := datagram(b, clc.TypeResolve)
	if err != nil || len(b) < minQueryLen || len(b) > MaxQueryLen {
		return QueryNonce{}, false
	}
	return QueryNonce(b[clc.HeaderLen+clc.TLVHeaderLen:]), true
}

// AnswerNonceOf returns the nonce of a datagram that has the beginning of a RESOLVED or REFUSED.
func AnswerNonceOf(b []byte) (QueryNonce, bool) {
	for _, t := range []clc.MessageType{clc.TypeResolved, clc.TypeRefused} {
		if _, _, err := datagram(b, t); err == nil {
			return QueryNonce(b[clc.HeaderLen+clc.TLVHeaderLen:]), true
		}
	}
	return QueryNonce{}, false
}

// datagram returns the header and the TLVs of a message of type t that fills b and begins with a query nonce.
func datagram(b []byte, t clc.MessageType) (clc.Header, []byte, error) {
	h, tlvs, err := clc.Message(b, t)
	if err != nil {
		return clc.Header{}, nil, err
	}
	if h.Len != len(b) {
		return clc.Header{}, nil, fmt.Errorf("clc %s with %d bytes after it: %w", t, len(b)-h.Len, clc.ErrMalformed)
	}
	const n = len(QueryNonce{})
	if len(tlvs) < clc.TLVHeaderLen+n || binary.BigEndian.Uint32(tlvs) != clc.TLVQueryNonce<<16|uint32(n) {
		return clc.Header{}, nil, fmt.Errorf("clc %s not starting with the nonce: %w", t, clc.ErrMalformed)
	}
	return h, tlvs, nil
}

// An address TLV is the IP address (16 bytes, IPv4 as ::ffff:a.b.c.d) and UDP port (2) of the receiver as the sender
// sees it.
const addressLen = 16 + 2

func appendAddress(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	return clc.AppendTLV(b, clc.TLVAddress, binary.BigEndian.AppendUint16(ip[:], a.Port()))
}

func setAddress(a *netip.AddrPort, v []byte) error {
	if err := clc.Want(v, addressLen); err != nil {
		return err
	}
	*a = netip.AddrPortFrom(netip.AddrFrom16([16]byte(v)).Unmap(), binary.BigEndian.Uint16(v[16:]))
	return nil
}

func appendCookie(b []byte, c Cookie) []byte {
	if c == (Cookie{}) {
		return b
	}
	return clc.AppendTLV(b, clc.TLVCookie, c[:])
}

func appendTTL(b []byte, d time.Duration) []byte {
	s := min(max(d, 0), maxAnswerTTL) / time.Second
	return clc.AppendTLV(b, clc.TLVTTL, binary.BigEndian.AppendUint32(nil, uint32(s)))
}

func setTTL(d *time.Duration, v []byte) error {
	if err := clc.Want(v, 4); err != nil {
		return err
	}
	*d = min(time.Duration(binary.BigEndian.Uint32(v))*time.Second, maxAnswerTTL)
	return nil
}

// UDOffer is one way for a gateway to receive datagrams: a UD queue pair that every peer may use that has proved its
// address. Kind says which of the fields after QKey are valid.
type UDOffer struct {
	Kind negotiate.CarrierKind
	// MTU is the largest packet in bytes, a power of two from 256 to 4096.
	MTU uint16
	// QPN is the queue pair number; 24 bits on a RoCEv2 device.
	QPN uint32
	// QKey must be in every packet to the queue pair (IBTA vol. 1, 10.2.5). A host that knows it has read an answer
	// sent to its address.
	QKey uint32

	// Name (CarrierSHM) is the rendezvous socket's file name in shm_dir, as in SHMEndpoint; Key authorises the
	// rendezvous.
	Name string
	Key  [16]byte

	// GID (CarrierSoft, CarrierHW) is the address of the device port, and UDPPort is where it receives.
	GID     [16]byte
	UDPPort uint16
	// Mixed allows devices of both RoCEv2 kinds: in a message, the queue pair may talk to one of the other kind; in an
	// action, it does.
	Mixed bool
}

// A UD offer TLV is kind(1), flags(1), path MTU(2), queue pair(4), Q_Key(4), then fields by kind.
const (
	udFixedLen    = 2 + 2 + 4 + 4
	udSHMFixedLen = 16     // key; the name follows to the end of the TLV
	udRoCELen     = 16 + 2 // GID, UDP port
	flagMixed     = 1      // see UDOffer.Mixed; other flags are ignored
)

func appendUDOffer(b []byte, o *UDOffer) []byte {
	b = binary.BigEndian.AppendUint16(b, clc.TLVUDOffer)
	b = binary.BigEndian.AppendUint16(b, uint16(udOfferLen(o)-clc.TLVHeaderLen))
	b = append(b, uint8(o.Kind), o.flags())
	b = binary.BigEndian.AppendUint16(b, o.MTU)
	b = binary.BigEndian.AppendUint32(b, o.QPN)
	b = binary.BigEndian.AppendUint32(b, o.QKey)
	if o.Kind == negotiate.CarrierSHM {
		b = append(b, o.Key[:]...)
		return append(b, o.Name...)
	}
	b = append(b, o.GID[:]...)
	return binary.BigEndian.AppendUint16(b, o.UDPPort)
}

func (o *UDOffer) flags() uint8 {
	if o.Mixed && o.Kind.IsRoCE() {
		return flagMixed
	}
	return 0
}

func udOfferLen(o *UDOffer) int {
	n := clc.TLVHeaderLen + udFixedLen
	if o.Kind == negotiate.CarrierSHM {
		return n + udSHMFixedLen + len(o.Name)
	}
	return n + udRoCELen
}

// addUDOffer parses one TLV. It skips a kind that this version does not know, since the receiver need not use every
// offer.
func addUDOffer(list *[]UDOffer, v []byte) error {
	if len(v) < udFixedLen {
		return fmt.Errorf("ud offer of %d bytes: %w", len(v), clc.ErrMalformed)
	}
	o := UDOffer{
		Kind: negotiate.CarrierKind(v[0]),
		MTU:  binary.BigEndian.Uint16(v[2:]),
		QPN:  binary.BigEndian.Uint32(v[4:]),
		QKey: binary.BigEndian.Uint32(v[8:]),
	}
	var err error
	switch o.Kind {
	case negotiate.CarrierSHM:
		err = o.parseSHM(v[udFixedLen:])
	case negotiate.CarrierSoft, negotiate.CarrierHW:
		o.Mixed = v[1]&flagMixed != 0
		err = o.parseRoCE(v[udFixedLen:])
	case negotiate.CarrierRelay: // cannot carry datagrams
		return fmt.Errorf("relay as an offer: %w", clc.ErrMalformed)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if !clc.ValidMTU(o.MTU) {
		return fmt.Errorf("path mtu %d: %w", o.MTU, clc.ErrMalformed)
	}
	if len(*list) == negotiate.MaxCarriers || FindUDOffer(*list, o.Kind) != nil {
		return fmt.Errorf("ud offer %s too many: %w", o.Kind, clc.ErrMalformed)
	}
	*list = append(*list, o)
	return nil
}

func (o *UDOffer) parseSHM(v []byte) error {
	if len(v) < udSHMFixedLen {
		return fmt.Errorf("shm endpoint of %d bytes: %w", len(v), clc.ErrMalformed)
	}
	o.Key, o.Name = [16]byte(v), string(v[udSHMFixedLen:])
	if !clc.ValidName(o.Name) {
		return fmt.Errorf("shm rendezvous name %q: %w", o.Name, clc.ErrMalformed)
	}
	return nil
}

func (o *UDOffer) parseRoCE(v []byte) error {
	if err := clc.Want(v, udRoCELen); err != nil {
		return err
	}
	o.GID, o.UDPPort = [16]byte(v), binary.BigEndian.Uint16(v[16:])
	if o.QPN > clc.Max24 || o.UDPPort == 0 {
		return fmt.Errorf("roce endpoint out of range: %w", clc.ErrMalformed)
	}
	if o.Mixed && o.UDPPort != clc.RoCEPort {
		return fmt.Errorf("mixed ends at udp port %d: %w", o.UDPPort, clc.ErrMalformed)
	}
	return nil
}

// FindUDOffer returns the offer of this kind, or nil.
func FindUDOffer(list []UDOffer, k negotiate.CarrierKind) *UDOffer {
	for i := range list {
		if list[i].Kind == k {
			return &list[i]
		}
	}
	return nil
}

// findMixed returns a RoCEv2 offer that a device of the other kind may use, or nil.
func findMixed(list []UDOffer) *UDOffer {
	for i := range list {
		if list[i].Mixed && list[i].Kind.IsRoCE() {
			return &list[i]
		}
	}
	return nil
}
