package rsocket

import "fmt"

// Imm is the 32-bit immediate of a WRITE_WITH_IMM in host byte order: the operation in bits 31:29 and its data in bits
// 28:0. On the wire it is in network byte order.
type Imm uint32

// Op is the operation of an immediate.
type Op uint8

// Operations of the protocol. Numbers that never cross the wire are omitted.
const (
	// OpData announces the arrival of data; the immediate's data is its length.
	OpData Op = 0
	// OpProbe is the number that stock rsockets reserve as RSVD_DATA_MORE. Gateways use it with each other to prove that a
	// carrier works, before any stream message; a stock peer is never sent one.
	OpProbe Op = 1
	// OpSGL carries the credit limit, and a grant if its length is 16 bytes.
	OpSGL Op = 4
	// OpIomapSGL announces an update of a direct-placement slot.
	OpIomapSGL Op = 6
	// OpCtrl carries a control code.
	OpCtrl Op = 7
)

// Control codes of [OpCtrl] that cross the wire.
const (
	CtrlDisconnect uint32 = 0
	CtrlShutdown   uint32 = 2
)

const (
	immShift = 29
	immMask  = 1<<immShift - 1
	// probeEcho marks the answer to a probe; the bits below it are the length of the probe.
	probeEcho = 1 << 28
)

// MakeImm builds an immediate; data beyond 29 bits is cut off.
func MakeImm(op Op, data uint32) Imm { return Imm(uint32(op)<<immShift | data&immMask) }

// Op returns the operation.
func (i Imm) Op() Op { return Op(i >> immShift) }

// Data returns the lower 29 bits.
func (i Imm) Data() uint32 { return uint32(i) & immMask }

// String names the message for errors and tests.
func (i Imm) String() string {
	switch i.Op() {
	case OpData:
		return fmt.Sprintf("data %d", i.Data())
	case OpProbe:
		if i.Data()&probeEcho != 0 {
			return fmt.Sprintf("probe echo %d", i.Data()&^probeEcho)
		}
		return fmt.Sprintf("probe %d", i.Data())
	case OpSGL:
		return fmt.Sprintf("sgl %d", uint16(i.Data()))
	case OpIomapSGL:
		return fmt.Sprintf("iomap %d", i.Data())
	case OpCtrl:
		return i.ctrlString()
	default:
		return fmt.Sprintf("op %d %d", i.Op(), i.Data())
	}
}

func (i Imm) ctrlString() string {
	switch i.Data() {
	case CtrlDisconnect:
		return "disconnect"
	case CtrlShutdown:
		return "shutdown"
	default:
		return fmt.Sprintf("ctrl %d", i.Data())
	}
}
