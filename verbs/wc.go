package verbs

// WCStatus is the status of a completion (enum ibv_wc_status, same numbers; IBTA
// vol. 1, 11.6.2 says when each is due).
type WCStatus uint8

// The completion statuses.
const (
	WCSuccess    WCStatus = iota
	WCLocLenErr           // a message longer than its receive, or than the transport sends
	WCLocQPOpErr          // inconsistent work request or queue pair
	WCLocEECOpErr
	WCLocProtErr // an SGE names memory without the rights for it
	WCWRFlushErr // the queue pair was in ERR before this request's turn
	WCMWBindErr
	WCBadRespErr // an answer that the request does not explain
	WCLocAccessErr
	WCRemInvReqErr   // the responder refused the request's form or length
	WCRemAccessErr   // the responder refused key, range or right
	WCRemOpErr       // the responder could not execute it
	WCRetryExcErr    // no answer after RetryCnt repetitions
	WCRNRRetryExcErr // no receive at the peer after RNRRetry repetitions
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

// WCOpcode says what completed (enum ibv_wc_opcode, same numbers).
type WCOpcode uint8

// The completion opcodes. Of a completion with an error status only WRID,
// Status, QPNum and VendorErr are valid (ibv_poll_cq(3)).
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

// WC is a work completion (struct ibv_wc). ImmData is the immediate as a
// number: the wire bytes 80 00 01 80 are 0x80000180. With WCWithInv it is the
// key that the peer invalidated.
type WC struct {
	WRID      uint64 // of the work request
	ImmData   uint32 // see Flags
	ByteLen   uint32 // bytes of the message; UD: 40 bytes of GRH among them
	QPNum     uint32 // our queue pair
	SrcQP     uint32 // UD: the peer's queue pair
	VendorErr uint32 // 0: devices of this module have no such codes
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
}
