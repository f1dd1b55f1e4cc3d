package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStrings(t *testing.T) {
	require.Equal(t, "RNR_RETRY_EXC_ERR", WCRNRRetryExcErr.String())
	require.Equal(t, "RESP_TIMEOUT_ERR", WCRespTimeoutErr.String())
	require.Equal(t, "WC(99)", WCStatus(99).String())
	require.Equal(t, "RTS", QPSRTS.String())
	require.Equal(t, "RC", QPTRC.String())
	require.Equal(t, "QPT(0)", QPType(0).String())
	require.Equal(t, "RDMA_WRITE_WITH_IMM", WRRDMAWriteWithImm.String())
	require.Equal(t, "RECV_RDMA_WITH_IMM", WCRecvRDMAWithImm.String())
	require.Equal(t, "RDMA_WRITE", WCRDMAWrite.String())
	require.Equal(t, "GSI", QPTGSI.String())
	require.Equal(t, "SRQ_LIMIT_REACHED", EventSRQLimitReached.String())
	require.Equal(t, "GID_CHANGE", EventGIDChange.String())
	require.Equal(t, "EVENT(19)", EventType(19).String())
	require.Equal(t, "ACTIVE", PortActive.String())
	require.Equal(t, "PORT(0)", PortState(0).String())
	require.Equal(t, "LOCAL_INV", WCLocalInv.String())
	require.Equal(t, "WC_RECV(2)", WCOpcode(130).String())
}

func TestOpcodes(t *testing.T) {
	for op, want := range map[WROpcode]WCOpcode{
		WRRDMAWrite: WCRDMAWrite, WRRDMAWriteWithImm: WCRDMAWrite, WRSend: WCSend, WRSendWithInv: WCSend,
		WRRDMARead: WCRDMARead, WRAtomicCmpAndSwp: WCCompSwap, WRAtomicFetchAndAdd: WCFetchAdd,
		WRSendWithImm: WCSend, WRLocalInv: WCLocalInv, WRBindMW: WCBindMW,
	} {
		require.Equal(t, want, op.WCOpcode(), "%v", op)
	}
}

// IBTA vol. 1, table 45.
func TestRNRTimer(t *testing.T) {
	require.Equal(t, 655360*time.Microsecond, RNRTimer(0))
	require.Equal(t, 10*time.Microsecond, RNRTimer(1))
	require.Equal(t, 640*time.Microsecond, RNRTimer(12))
	require.Equal(t, 491520*time.Microsecond, RNRTimer(31))
	require.Equal(t, RNRTimer(0), RNRTimer(32))
	for c := uint8(2); c < 32; c++ {
		require.Greater(t, RNRTimer(c), RNRTimer(c-1))
	}
}

func TestMTU(t *testing.T) {
	require.Equal(t, 256, MTU256.Bytes())
	require.Equal(t, 4096, MTU4096.Bytes())
	require.Zero(t, MTU(0).Bytes())
	require.Zero(t, MTU(6).Bytes())
}

func TestAccess(t *testing.T) {
	require.True(t, (AccessLocalWrite | AccessRemoteWrite).ValidMR())
	require.True(t, AccessRemoteRead.ValidMR())
	require.False(t, AccessRemoteAtomic.ValidMR())
	require.Equal(t, AccessRemoteWrite, (AccessLocalWrite | AccessRemoteWrite).Remote())
}

type fakeCQ struct{ CQ }
