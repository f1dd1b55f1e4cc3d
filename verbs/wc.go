package verbs

// WCStatus is the status of a completion (enum ibv_wc_status, same numbers; see IBTA vol. 1, 11.6.2).
type WCStatus uint8

// The completion statuses.
const (
	WCSuccess    WCStatus = iota
	WCLocLenErr           // a message too long for its receive or for the transport
	WCLocQPOpErr          // inconsistent work request or queue pair
	WCLocEECOpErr
	WCLocProtErr // an SGE is of memory without the required rights
	WCWRFlushErr // the queue pair was in ERR before this request's turn
	WCMWBindErr
	WCBadRespErr // an answer that does not fit the request
	WCLocAccessErr
	WCRemInvReqErr   // the responder refused the request's form or length
	WCRemAccessErr   // the responder refused key, range or right
	WCRemOpErr       // the responder could not execute it
	WCRetryExcErr    // no answer after RetryCnt repetitions
	WCRNRRetryExcErr // the peer had no receive after RNRRetry repetitions
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

var wcStatusNames = [...]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
	"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
	"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
	"INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
}

// String returns the standard name of the status.
func (s WCStatus) String() string { return nameOf(wcStatusNames[:], int(s), "WC") }

// WCOpcode is the operation that completed (enum ibv_wc_opcode, same numbers).
type WCOpcode uint8

// The completion opcodes. A completion with an error status has only WRID, Status, QPNum and VendorErr
// (ibv_poll_cq(3)).
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// String returns the standard name of the opcode.
func (o WCOpcode) String() string {
	if o >= WCRecv {
		return nameOf([]string{"RECV", "RECV_RDMA_WITH_IMM"}, int(o-WCRecv), "WC_RECV")
	}
	return nameOf([]string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV"}, int(o), "WC")
}

// WCFlags qualify a completion (enum ibv_wc_flags, same numbers).
type WCFlags uint8

// The completion flags.
const (
	WCGRH     WCFlags = 1 << 0 // UD: the receive buffer begins with a GRH
	WCWithImm WCFlags = 1 << 1 // ImmData is valid
	WCWithInv WCFlags = 1 << 3 // the peer invalidated a key of ours
)

// WC is a work completion (struct ibv_wc). ImmData is the immediate in host byte order: the wire bytes 80 00 01 80 are
// 0x80000180. With WCWithInv it is the key that the peer invalidated.
type WC struct {
	WRID      uint64 // of the work request
	ImmData   uint32 // see Flags
	ByteLen   uint32 // bytes of the message; UD: including 40 bytes of GRH
	QPNum     uint32 // our queue pair
	SrcQP     uint32 // UD: the peer's queue pair
	VendorErr uint32 // 0: devices of this module have no such codes
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
}
