package wire

// Traits describes an opcode.
type Traits uint16

// What a packet does, its position in the message, and what follows the BTH. Extension headers are on the wire in the
// order of their bits, RETH first.
const (
	Request  Traits = 1 << iota // for the responder
	Response                    // for the requester
	Send                        // consumes a receive request
	Write                       // RDMA write
	Read                        // RDMA read: the request and its responses
	Start                       // FIRST or ONLY, and every message that is always one packet
	Middle                      // neither Start nor End
	End                         // LAST or ONLY, and every message that is always one packet

	HasDETH         // Q_Key and source queue pair
	HasRETH         // address, key and length
	HasAtomicETH    // address, key and operands
	HasAETH         // syndrome and message sequence number
	HasAtomicAckETH // the previous value
	HasImm          // immediate data
	HasIETH         // the key to invalidate
	HasReserved     // the 16 reserved bytes of a CNP
)

// Atomic is set for atomic operations and their responses.
const Atomic = HasAtomicETH | HasAtomicAckETH

// Only marks a message of one packet.
const Only = Start | End

var traits = [256]Traits{
	RCSendFirst:    Request | Send | Start,
	RCSendMiddle:   Request | Send | Middle,
	RCSendLast:     Request | Send | End,
	RCSendLastImm:  Request | Send | End | HasImm,
	RCSendLastInv:  Request | Send | End | HasIETH,
	RCSendOnly:     Request | Send | Only,
	RCSendOnlyImm:  Request | Send | Only | HasImm,
	RCSendOnlyInv:  Request | Send | Only | HasIETH,
	RCWriteFirst:   Request | Write | Start | HasRETH,
	RCWriteMiddle:  Request | Write | Middle,
	RCWriteLast:    Request | Write | End,
	RCWriteLastImm: Request | Write | End | HasImm,
	RCWriteOnly:    Request | Write | Only | HasRETH,
	RCWriteOnlyImm: Request | Write | Only | HasRETH | HasImm,
	RCReadRequest:  Request | Read | Only | HasRETH,
	RCCompareSwap:  Request | Only | HasAtomicETH,
	RCFetchAdd:     Request | Only | HasAtomicETH,

	RCReadResponseFirst:  Response | Read | Start | HasAETH,
	RCReadResponseMiddle: Response | Read | Middle,
	RCReadResponseLast:   Response | Read | End | HasAETH,
	RCReadResponseOnly:   Response | Read | Only | HasAETH,
	RCAcknowledge:        Response | Only | HasAETH,
	RCAtomicAcknowledge:  Response | Only | HasAETH | HasAtomicAckETH,

	UCSendFirst:    Request | Send | Start,
	UCSendMiddle:   Request | Send | Middle,
	UCSendLast:     Request | Send | End,
	UCSendLastImm:  Request | Send | End | HasImm,
	UCSendOnly:     Request | Send | Only,
	UCSendOnlyImm:  Request | Send | Only | HasImm,
	UCWriteFirst:   Request | Write | Start | HasRETH,
	UCWriteMiddle:  Request | Write | Middle,
	UCWriteLast:    Request | Write | End,
	UCWriteLastImm: Request | Write | End | HasImm,
	UCWriteOnly:    Request | Write | Only | HasRETH,
	UCWriteOnlyImm: Request | Write | Only | HasRETH | HasImm,

	UDSendOnly:    Request | Send | Only | HasDETH,
	UDSendOnlyImm: Request | Send | Only | HasDETH | HasImm,

	CNP: HasReserved,
}

// headerLen returns the size of the BTH and the extension headers.
func (t Traits) headerLen() int {
	n := BTHLen
	if t&(HasDETH|HasRETH|HasAtomicETH|HasAETH|HasAtomicAckETH|HasImm|HasIETH|HasReserved) == 0 {
		return n
	}
	for _, x := range [...]struct {
		has Traits
		len int
	}{
		{HasDETH, dethLen},
		{HasRETH, rethLen},
		{HasAtomicETH, atomicETHLen},
		{HasAETH, aethLen},
		{HasAtomicAckETH, atomicAckETHLen},
		{HasImm, immLen},
		{HasIETH, iethLen},
		{HasReserved, reservedLen},
	} {
		if t&x.has != 0 {
			n += x.len
		}
	}
	return n
}

// headerLens holds headerLen of every opcode.
var headerLens = func() (lens [256]uint8) {
	for o, t := range traits {
		lens[o] = uint8(t.headerLen())
	}
	return lens
}()
