package wire

import "fmt"

// Opcode is byte 0 of the BTH (IBTA vol. 1, 9.2.1): the transport in the top
// three bits, the operation below.
type Opcode uint8

// Reliable connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0a
	RCWriteOnlyImm       Opcode = 0x0b
	RCReadRequest        Opcode = 0x0c
	RCReadResponseFirst  Opcode = 0x0d
	RCReadResponseMiddle Opcode = 0x0e
	RCReadResponseLast   Opcode = 0x0f
	RCReadResponseOnly   Opcode = 0x10
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCompareSwap        Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInv        Opcode = 0x16
	RCSendOnlyInv        Opcode = 0x17
)

// Unreliable connection.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b
)

// Unreliable datagram, and the congestion notification of RoCEv2 (annex A17).
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// Transport is the service of an opcode.
type Transport uint8

// The services, numbered as in the top three bits of an opcode. RD has no opcodes here.
const (
	RC       Transport = 0
	UC       Transport = 1
	RD       Transport = 2
	UD       Transport = 3
	CNPClass Transport = 4
)

// Transport returns the service of an opcode, known or not.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// Known reports whether this package can parse the headers of an opcode.
func (o Opcode) Known() bool { return traits[o] != 0 }

// Traits returns the traits of an opcode; 0 if it is unknown.
func (o Opcode) Traits() Traits { return traits[o] }

// String returns the name of an opcode in IBTA vol. 1, 9.2.1, such as RC_SEND_FIRST.
func (o Opcode) String() string {
	if name := names[o]; name != "" {
		return name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}

var names = [256]string{
	RCSendFirst:          "RC_SEND_FIRST",
	RCSendMiddle:         "RC_SEND_MIDDLE",
	RCSendLast:           "RC_SEND_LAST",
	RCSendLastImm:        "RC_SEND_LAST_WITH_IMMEDIATE",
	RCSendOnly:           "RC_SEND_ONLY",
	RCSendOnlyImm:        "RC_SEND_ONLY_WITH_IMMEDIATE",
	RCWriteFirst:         "RC_RDMA_WRITE_FIRST",
	RCWriteMiddle:        "RC_RDMA_WRITE_MIDDLE",
	RCWriteLast:          "RC_RDMA_WRITE_LAST",
	RCWriteLastImm:       "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
	RCWriteOnly:          "RC_RDMA_WRITE_ONLY",
	RCWriteOnlyImm:       "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
	RCReadRequest:        "RC_RDMA_READ_REQUEST",
	RCReadResponseFirst:  "RC_RDMA_READ_RESPONSE_FIRST",
	RCReadResponseMiddle: "RC_RDMA_READ_RESPONSE_MIDDLE",
	RCReadResponseLast:   "RC_RDMA_READ_RESPONSE_LAST",
	RCReadResponseOnly:   "RC_RDMA_READ_RESPONSE_ONLY",
	RCAcknowledge:        "RC_ACKNOWLEDGE",
	RCAtomicAcknowledge:  "RC_ATOMIC_ACKNOWLEDGE",
	RCCompareSwap:        "RC_COMPARE_SWAP",
	RCFetchAdd:           "RC_FETCH_ADD",
	RCSendLastInv:        "RC_SEND_LAST_WITH_INVALIDATE",
	RCSendOnlyInv:        "RC_SEND_ONLY_WITH_INVALIDATE",
	UCSendFirst:          "UC_SEND_FIRST",
	UCSendMiddle:         "UC_SEND_MIDDLE",
	UCSendLast:           "UC_SEND_LAST",
	UCSendLastImm:        "UC_SEND_LAST_WITH_IMMEDIATE",
	UCSendOnly:           "UC_SEND_ONLY",
	UCSendOnlyImm:        "UC_SEND_ONLY_WITH_IMMEDIATE",
	UCWriteFirst:         "UC_RDMA_WRITE_FIRST",
	UCWriteMiddle:        "UC_RDMA_WRITE_MIDDLE",
	UCWriteLast:          "UC_RDMA_WRITE_LAST",
	UCWriteLastImm:       "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
	UCWriteOnly:          "UC_RDMA_WRITE_ONLY",
	UCWriteOnlyImm:       "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
	UDSendOnly:           "UD_SEND_ONLY",
	UDSendOnlyImm:        "UD_SEND_ONLY_WITH_IMMEDIATE",
	CNP:                  "CNP",
}
