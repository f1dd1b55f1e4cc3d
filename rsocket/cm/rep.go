package cm

// REP accepts a REQ (IBTA vol. 1, 12.6.8).
type REP struct {
	LocalID            uint32
	RemoteID           uint32 // the REQ's LocalID
	QKey               uint32
	QPN                uint32 // 24 bits
	PSN                uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits: how long the sender takes to acknowledge a packet
	FailoverAccepted   uint8 // 2 bits
	FlowControl        bool
	RNRRetry           uint8 // 3 bits: of the receiver's queue pair
	SRQ                bool
	CAGUID             uint64
	PrivateData        []byte // at most MaxREPPrivate
}

// Attr implements Message.
func (*REP) Attr() AttrID { return AttrREP }

func (m *REP) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	put32(b[8:], m.QKey)
	put24(b[12:], m.QPN)
	put24(b[20:], m.PSN)
	b[24], b[25] = m.ResponderResources, m.InitiatorDepth
	b[26] = m.AckDelay<<3 | m.FailoverAccepted&3<<1 | bit(m.FlowControl, 0)
	b[27] = m.RNRRetry<<5 | bit(m.SRQ, 4)
	put64(b[28:], m.CAGUID)
	copy(b[36:], m.PrivateData)
}

func (m *REP) parse(b []byte) error {
	*m = REP{
		LocalID: get32(b), RemoteID: get32(b[4:]), QKey: get32(b[8:]), QPN: get24(b[12:]), PSN: get24(b[20:]),
		ResponderResources: b[24], InitiatorDepth: b[25],
		AckDelay: b[26] >> 3, FailoverAccepted: b[26] >> 1 & 3, FlowControl: b[26]&1 != 0,
		RNRRetry: b[27] >> 5, SRQ: b[27]&16 != 0, CAGUID: get64(b[28:]), PrivateData: b[36:],
	}
	return nil
}

// RTU tells the passive side that the REP arrived (IBTA vol. 1, 12.6.9).
type RTU struct {
	LocalID, RemoteID uint32
	PrivateData       []byte // at most MaxRTUPrivate
}

// Attr implements Message.
func (*RTU) Attr() AttrID { return AttrRTU }

func (m *RTU) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	copy(b[8:], m.PrivateData)
}

func (m *RTU) parse(b []byte) error {
	*m = RTU{LocalID: get32(b), RemoteID: get32(b[4:]), PrivateData: b[8:]}
	return nil
}

// MRA says that the answer to a message takes longer than its sender assumes
// (IBTA vol. 1, 12.6.6).
type MRA struct {
	LocalID, RemoteID uint32
	Message           MessageKind
	ServiceTimeout    uint8  // 5 bits: 4.096 µs << code, from now
	PrivateData       []byte // at most MaxMRAPrivate
}

// MessageKind says what an MRA or REJ answers.
type MessageKind uint8

// The messages that are answered.
const (
	KindREQ   MessageKind = 0
	KindREP   MessageKind = 1
	KindOther MessageKind = 2 // MRA: LAP; REJ: no message
)

// Attr implements Message.
func (*MRA) Attr() AttrID { return AttrMRA }

func (m *MRA) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	b[8] = byte(m.Message) << 6
	b[9] = m.ServiceTimeout << 3
	copy(b[10:], m.PrivateData)
}

func (m *MRA) parse(b []byte) error {
	*m = MRA{
		LocalID: get32(b), RemoteID: get32(b[4:]), Message: MessageKind(b[8] >> 6), ServiceTimeout: b[9] >> 3,
		PrivateData: b[10:],
	}
	return nil
}

// DREQ ends a connection (IBTA vol. 1, 12.6.10).
type DREQ struct {
	LocalID, RemoteID uint32
	RemoteQPN         uint32 // 24 bits: the queue pair of the receiver
	PrivateData       []byte // at most MaxDREQPrivate
}

// Attr implements Message.
func (*DREQ) Attr() AttrID { return AttrDREQ }

func (m *DREQ) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	put24(b[8:], m.RemoteQPN)
	copy(b[12:], m.PrivateData)
}

func (m *DREQ) parse(b []byte) error {
	*m = DREQ{LocalID: get32(b), RemoteID: get32(b[4:]), RemoteQPN: get24(b[8:]), PrivateData: b[12:]}
	return nil
}

// DREP answers a DREQ (IBTA vol. 1, 12.6.11).
type DREP struct {
	LocalID, RemoteID uint32
	PrivateData       []byte // at most MaxDREPPrivate
}

// Attr implements Message.
func (*DREP) Attr() AttrID { return AttrDREP }

func (m *DREP) put(b []byte) {
	put32(b, m.LocalID)
	put32(b[4:], m.RemoteID)
	copy(b[8:], m.PrivateData)
}

func (m *DREP) parse(b []byte) error {
	*m = DREP{LocalID: get32(b), RemoteID: get32(b[4:]), PrivateData: b[8:]}
	return nil
}
