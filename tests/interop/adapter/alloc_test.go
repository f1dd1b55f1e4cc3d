package adapter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestAllocations checks that a message through the real library allocates nothing, neither to post, nor to poll, nor
// to find out whether the loop may sleep.
func TestAllocations(t *testing.T) {
	dev, side := open(t)
	cq, err := dev.CreateCQ(verbs.CQAttr{Depth: 64})
	require.NoError(t, err)
	mr, err := side.PD.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	var qps [2]verbs.QP
	for i := range qps {
		qps[i], err = side.PD.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, SQSigAll: true, Cap: verbs.QPCap{
			MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1,
		}})
		require.NoError(t, err)
		require.NoError(t, verbs.Init(qps[i], verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	}
	index := ipv4(t, dev.Port())
	for i, qp := range qps {
		attr, port := verbs.ConnectAttr(qps[1-i].Num()), dev.Port()
		attr.AH = verbs.AHAttr{DGID: port.GIDs[index].GID, SGIDIndex: uint8(index), HopLimit: 64, Port: 1}
		attr.PathMTU = port.ActiveMTU
		require.NoError(t, verbs.Connect(qp, attr))
	}
	send := &verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
		SGList: []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}},
	}
	recv, wcs := &verbs.RecvWR{}, make([]verbs.WC, 16)
	message := func() error {
		if err := qps[1].PostRecv(recv); err != nil {
			return err
		}
		if err := qps[0].PostSend(send); err != nil {
			return err
		}
		side.Driver.Flush()
		for n, deadline := 0, time.Now().Add(patience); n < 2 && time.Now().Before(deadline); {
			side.Driver.Progress(time.Now())
			side.Driver.(verbs.Peeker).Ready()
			got, err := cq.Poll(wcs)
			if err != nil {
				return err
			}
			n += got
			side.Driver.Arm()
		}
		return nil
	}
	for range 10 {
		require.NoError(t, message())
	}
	var failed error
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if err := message(); err != nil {
			failed = err
		}
	}))
	require.NoError(t, failed)
	for _, qp := range qps {
		require.NoError(t, qp.Close())
	}
	require.NoError(t, mr.Close())
	require.NoError(t, cq.Close())
}
