package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are those of rdma-core's verbs.h and of enum ib_qp_type; programs
// print and compare them, and what is saved by one version is read by another.
func TestNumbers(t *testing.T) {
	numbers(t, map[WCStatus]int{
		WCSuccess: 0, WCLocLenErr: 1, WCLocQPOpErr: 2, WCLocEECOpErr: 3, WCLocProtErr: 4, WCWRFlushErr: 5, WCMWBindErr: 6,
		WCBadRespErr: 7, WCLocAccessErr: 8, WCRemInvReqErr: 9, WCRemAccessErr: 10, WCRemOpErr: 11, WCRetryExcErr: 12,
		WCRNRRetryExcErr: 13, WCLocRDDViolErr: 14, WCRemInvRDReqErr: 15, WCRemAbortErr: 16, WCInvEECNErr: 17,
		WCInvEECStateErr: 18, WCFatalErr: 19, WCRespTimeoutErr: 20, WCGeneralErr: 21,
	})
	numbers(t, map[WCOpcode]int{
		WCSend: 0, WCRDMAWrite: 1, WCRDMARead: 2, WCCompSwap: 3, WCFetchAdd: 4, WCBindMW: 5, WCLocalInv: 6,
		WCRecv: 128, WCRecvRDMAWithImm: 129,
	})
	numbers(t, map[WCFlags]int{WCGRH: 1, WCWithImm: 2, WCWithInv: 8})
	numbers(t, map[WROpcode]int{
		WRRDMAWrite: 0, WRRDMAWriteWithImm: 1, WRSend: 2, WRSendWithImm: 3, WRRDMARead: 4, WRAtomicCmpAndSwp: 5,
		WRAtomicFetchAndAdd: 6, WRLocalInv: 7, WRBindMW: 8, WRSendWithInv: 9,
	})
	numbers(t, map[SendFlags]int{SendFence: 1, SendSignaled: 2, SendInline: 8})
	numbers(t, map[Access]int{AccessLocalWrite: 1, AccessRemoteWrite: 2, AccessRemoteRead: 4, AccessRemoteAtomic: 8})
	numbers(t, map[QPType]int{QPTGSI: 1, QPTRC: 2, QPTUC: 3, QPTUD: 4})
	numbers(t, map[QPState]int{QPSReset: 0, QPSInit: 1, QPSRTR: 2, QPSRTS: 3, QPSSQD: 4, QPSSQE: 5, QPSErr: 6})
	numbers(t, map[MTU]int{MTU256: 1, MTU512: 2, MTU1024: 3, MTU2048: 4, MTU4096: 5})
	numbers(t, map[PortState]int{PortDown: 1, PortInit: 2, PortArmed: 3, PortActive: 4})
	numbers(t, map[GIDType]int{GIDTypeIB: 0, GIDTypeRoCEv1: 1, GIDTypeRoCEv2: 2})
	numbers(t, map[LinkLayer]int{LinkLayerUnspecified: 0, LinkLayerInfiniBand: 1, LinkLayerEthernet: 2})
}

func TestEventNumbers(t *testing.T) {
	numbers(t, map[EventType]int{
		EventCQErr: 0, EventQPFatal: 1, EventQPReqErr: 2, EventQPAccessErr: 3, EventCommEst: 4, EventSQDrained: 5,
		EventPathMig: 6, EventPathMigErr: 7, EventDeviceFatal: 8, EventPortActive: 9, EventPortErr: 10, EventLIDChange: 11,
		EventPKeyChange: 12, EventSMChange: 13, EventSRQErr: 14, EventSRQLimitReached: 15, EventQPLastWQEReached: 16,
		EventClientReregister: 17, EventGIDChange: 18,
	})
}

// enum ibv_qp_attr_mask leaves out what this model does not have:
// EN_SQD_ASYNC_NOTIFY (1 << 2), ALT_PATH (1 << 14), PATH_MIG_STATE (1 << 18), CAP (1 << 19), RATE_LIMIT (1 << 25).
func TestQPAttrNumbers(t *testing.T) {
	require.EqualValues(t, []QPAttrMask{1, 2}, []QPAttrMask{QPAttrState, QPAttrCurState})
	for i, m := range []QPAttrMask{
		QPAttrAccess, QPAttrPKeyIndex, QPAttrPort, QPAttrQKey, QPAttrAV,
		QPAttrPathMTU, QPAttrTimeout, QPAttrRetryCnt, QPAttrRNRRetry, QPAttrRQPSN, QPAttrMaxRDAtomic,
	} {
		require.EqualValues(t, 8<<i, m)
	}
	numbers(t, map[QPAttrMask]int{
		QPAttrMinRNRTimer: 1 << 15, QPAttrSQPSN: 1 << 16, QPAttrMaxDestRDAtomic: 1 << 17, QPAttrDestQPN: 1 << 20,
	})
}

func numbers[T interface {
	~uint8 | ~uint16 | ~uint32
	comparable
}](t *testing.T, want map[T]int) {
	t.Helper()
	for v, n := range want {
		require.EqualValues(t, n, v)
	}
}
