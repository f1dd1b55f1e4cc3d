package ibv

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
)

// PD is the handle of a protection domain. Zero is no handle, here and for all other types.
type PD uintptr

// MR is the handle of a memory region.
type MR uintptr

// Channel is the handle of a completion channel.
type Channel uintptr

// CQ is the handle of a completion queue.
type CQ uintptr

// QP is the handle of a queue pair.
type QP uintptr

// AH is the handle of an address handle.
type AH uintptr

// Batch is the work requests of a turn. The requests of one queue form a list, whose first has FlagHead; a list is
// posted as a whole.
type Batch struct {
	Sends  []Send
	Recvs  []Recv
	SGEs   []verbs.SGE // of all requests
	Inline []byte      // payload of all sends with SendInline
}

// FlagHead is a flag of records, beside those of verbs.SendFlags that libibverbs knows: the request is the first of its
// queue in the batch.
const FlagHead = 1 << 15

// Send is a send work request (struct ibv_send_wr) without pointers to Go memory. It has the layout of struct hw_send.
type Send struct {
	QP         QP
	WRID       uint64
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	AH         AH
	RKey       uint32
	Imm        uint32 // as a number
	RemoteQPN  uint32
	RemoteQKey uint32
	First      uint32 // index in Batch.SGEs, with verbs.SendInline in Batch.Inline
	Count      uint32 // SGEs, or bytes
	Next       int32  // index of the next one of the same queue, -1 at the end
	Err        int32  // set by Post: the errno of the provider's refusal
	Opcode     uint16
	Flags      uint16
}

// Recv is a receive work request (struct ibv_recv_wr), as Send.
type Recv struct {
	QP    QP
	WRID  uint64
	First uint32
	Next  int32
	Err   int32
	Count uint16
	Flags uint16
}

// Completion has the layout of struct ibv_wc.
type Completion struct {
	WRID      uint64
	Status    uint32
	Opcode    uint32
	VendorErr uint32
	ByteLen   uint32
	imm       [4]byte // network byte order
	QPNum     uint32
	SrcQP     uint32
	Flags     uint32
	_         uint16 // P_Key index
	_         uint16 // source LID
	_         uint8  // service level
	_         uint8  // path bits
}

// Imm returns the immediate in host byte order.
func (c *Completion) Imm() uint32 { return binary.BigEndian.Uint32(c.imm[:]) }

// SetImm sets the immediate.
func (c *Completion) SetImm(n uint32) { binary.BigEndian.PutUint32(c.imm[:], n) }
