package verbs

// WROpcode is the operation of a send work request (enum ibv_wr_opcode, same numbers).
type WROpcode uint8

// The operations.
const (
	WRRDMAWrite WROpcode = iota
	WRRDMAWriteWithImm
	WRSend
	WRSendWithImm
	WRRDMARead
	WRAtomicCmpAndSwp
	WRAtomicFetchAndAdd
	WRLocalInv
	WRBindMW
	WRSendWithInv
)

var wrOpcodeNames = [...]string{
	"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP",
	"ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV",
}

// String returns the standard name of the operation.
func (o WROpcode) String() string { return nameOf(wrOpcodeNames[:], int(o), "WR") }

// WCOpcode returns the opcode of the local completion of the operation.
func (o WROpcode) WCOpcode() WCOpcode {
	switch o {
	case WRRDMAWrite, WRRDMAWriteWithImm:
		return WCRDMAWrite
	case WRRDMARead:
		return WCRDMARead
	case WRAtomicCmpAndSwp:
		return WCCompSwap
	case WRAtomicFetchAndAdd:
		return WCFetchAdd
	case WRLocalInv:
		return WCLocalInv
	case WRBindMW:
		return WCBindMW
	default:
		return WCSend
	}
}

// SendFlags qualify a send work request (enum ibv_send_flags, same numbers;
// the flags from SendMapped on are ours).
type SendFlags uint16

// The flags of a send work request.
const (
	SendFence    SendFlags = 1 << 0 // starts only after earlier READs and atomics completed
	SendSignaled SendFlags = 1 << 1 // generates a completion; implied by QPInitAttr.SQSigAll
	SendInline   SendFlags = 1 << 3 // the payload is SendWR.Inline, copied before PostSend returns

	// SendMapped means that the payload is already in the peer's memory, written through RemoteMapper.MapRemote: the WR
	// has one SGE, with Addr equal to RemoteAddr and LKey equal to RKey, and nothing is copied. It implies SendPush.
	SendMapped SendFlags = 1 << 8
	// SendPush asks the device to notify the peer immediately instead of at the next Flush.
	SendPush SendFlags = 1 << 9
)

// SGE names a range of registered memory (struct ibv_sge).
type SGE struct {
	Addr   uint64 // MR.Addr() plus an offset
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a send work request (struct ibv_send_wr). The device keeps no reference to it or to its slices after
// PostSend returned, so one SendWR can be reused for all posts, without allocation. The memory of SGList belongs to the
// device until the completion.
//
// An atomic operates on eight bytes at RemoteAddr, a multiple of 8, as an integer in the byte order of the peer's
// machine. SGList receives the previous value.
type SendWR struct {
	WRID       uint64 // the caller's, returned in WC
	SGList     []SGE  // gathered, in order; READ and atomics: destination of the result
	Inline     []byte // payload of a WR with SendInline, instead of SGList
	Opcode     WROpcode
	Flags      SendFlags
	ImmData    uint32 // in host byte order, see WC
	RemoteAddr uint64 // RDMA and atomic operations: MR.Addr() of the peer plus an offset
	RKey       uint32 // RDMA and atomic operations: MR.RKey() of the peer
	InvRKey    uint32 // SEND_WITH_INV, LOCAL_INV
	CompareAdd uint64 // atomics: compare or add operand
	Swap       uint64 // ATOMIC_CMP_AND_SWP: new value
	AH         AH     // UD
	RemoteQPN  uint32 // UD
	RemoteQKey uint32 // UD
}

// RecvWR is a receive work request (struct ibv_recv_wr). The device keeps no
// reference to it or to SGList after PostRecv returned.
type RecvWR struct {
	WRID   uint64 // the caller's, returned in WC
	SGList []SGE  // filled in order; UD: the first 40 bytes are for the GRH
}
