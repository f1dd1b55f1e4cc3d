package cm

import "github.com/smcgw/smcgw/verbs"

// Room for private data in the messages (IBTA vol. 1, 12.6 and 12.11). In a REQ and a SIDR_REQ the first 36 bytes are
// the AddrHeader.
const (
	MaxREQPrivate     = 92
	MaxMRAPrivate     = 222
	MaxREJPrivate     = 148
	MaxREPPrivate     = 196
	MaxRTUPrivate     = 224
	MaxDREQPrivate    = 220
	MaxDREPPrivate    = 224
	MaxSIDRREQPrivate = 216
	MaxSIDRREPPrivate = 136
)

// Transport is the service type that a REQ asks for (IBTA vol. 1, 12.7.9).
type Transport uint8

// The transports.
const (
	TransportRC Transport = 0
	TransportUC Transport = 1
)

// permissiveLID is in both LID fields of a path that goes through a router, which RoCE paths always claim.
const permissiveLID = 0xffff

// REQ asks for a connection (IBTA vol. 1, 12.6.5). Timeouts are codes: 4.096 µs << code. End-to-end contexts, reliable
// datagrams and the extended transports are not supported: sent as zero and ignored.
type REQ struct {
	LocalID            uint32    // communication id of the sender
	Service            ServiceID // the service to connect to
	CAGUID             uint64    // of the sender's channel adapter
	QKey               uint32
	QPN                uint32 // 24 bits
	ResponderResources uint8  // READs and atomics that the sender serves at a time
	InitiatorDepth     uint8  // READs and atomics that the sender wants in flight
	RemoteTimeout      uint8  // 5 bits: how soon the receiver should answer
	Transport          Transport
	FlowControl        bool // the sender obeys end-to-end credits
	PSN                uint32
	LocalTimeout       uint8 // 5 bits: how soon the sender will answer
	RetryCount         uint8 // 3 bits: of the receiver's queue pair
	PKey               uint16
	MTU                verbs.MTU
	RNRRetry           uint8 // 3 bits: of the receiver's queue pair
	MaxCMRetries       uint8 // 4 bits: how often the receiver may repeat itself
	SRQ                bool
	ExtTransport       uint8 // 3 bits: 1 is XRC
	Primary            Path
	Alternate          Path
	PrivateData        []byte // at most MaxREQPrivate
}

// Path is a path through the network (IBTA vol. 1, table 106). Local and remote are from the view of the REQ's sender.
type Path struct {
	LocalLID, RemoteLID uint16
	LocalGID, RemoteGID verbs.GID
	FlowLabel           uint32 // 20 bits
	PacketRate          uint8  // 6 bits
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits: of the receiver's queue pair
}

// Attr implements Message.
func (*REQ) Attr() AttrID { return AttrREQ }

func (m *REQ) put(b []byte) {
	put32(b, m.LocalID)
	put64(b[8:], uint64(m.Service))
	put64(b[16:], m.CAGUID)
	put32(b[28:], m.QKey)
	put24(b[32:], m.QPN)
	b[35] = m.ResponderResources
	b[39] = m.InitiatorDepth
	b[43] = m.RemoteTimeout<<3 | byte(m.Transport)&3<<1 | bit(m.FlowControl, 0)
	put24(b[44:], m.PSN)
	b[47] = m.LocalTimeout<<3 | m.RetryCount&7
	put16(b[48:], m.PKey)
	b[50] = byte(m.MTU)<<4 | m.RNRRetry&7
	b[51] = m.MaxCMRetries<<4 | bit(m.SRQ, 3) | m.ExtTransport&7
	m.Primary.put(b[52:])
	m.Alternate.put(b[96:])
	copy(b[140:140+MaxREQPrivate], m.PrivateData)
}

func (m *REQ) parse(b []byte) error {
	*m = REQ{
		LocalID: get32(b), Service: ServiceID(get64(b[8:])), CAGUID: get64(b[16:]),
		QKey: get32(b[28:]), QPN: get24(b[32:]), ResponderResources: b[35], InitiatorDepth: b[39],
		RemoteTimeout: b[43] >> 3, Transport: Transport(b[43] >> 1 & 3), FlowControl: b[43]&1 != 0,
		PSN: get24(b[44:]), LocalTimeout: b[47] >> 3, RetryCount: b[47] & 7, PKey: get16(b[48:]),
		MTU: verbs.MTU(b[50] >> 4), RNRRetry: b[50] & 7,
		MaxCMRetries: b[51] >> 4, SRQ: b[51]&8 != 0, ExtTransport: b[51] & 7,
		PrivateData: b[140 : 140+MaxREQPrivate],
	}
	m.Primary.parse(b[52:])
	m.Alternate.parse(b[96:])
	return nil
}

func (p *Path) put(b []byte) {
	put16(b, p.LocalLID)
	put16(b[2:], p.RemoteLID)
	copy(b[4:], p.LocalGID[:])
	copy(b[20:], p.RemoteGID[:])
	put32(b[36:], p.FlowLabel<<12|uint32(p.PacketRate&63))
	b[40] = p.TrafficClass
	b[41] = p.HopLimit
	b[42] = p.SL<<4 | bit(p.SubnetLocal, 3)
	b[43] = p.AckTimeout << 3
}

func (p *Path) parse(b []byte) {
	*p = Path{
		LocalLID: get16(b), RemoteLID: get16(b[2:]), LocalGID: verbs.GID(b[4:20]), RemoteGID: verbs.GID(b[20:36]),
		FlowLabel: get32(b[36:]) >> 12, PacketRate: b[39] & 63, TrafficClass: b[40], HopLimit: b[41],
		SL: b[42] >> 4, SubnetLocal: b[42]&8 != 0, AckTimeout: b[43] >> 3,
	}
}
