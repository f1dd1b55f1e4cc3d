package hw

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// All that two queue pairs of a vector post in a turn is one call, receives
// with it, and polling a queue is one.
func TestCallsOfATurn(t *testing.T) {
	e := newEnds(t)
	e.connect()
	before := e.lib.Calls("fake0", "Post")
	for i := range uint64(8) {
		require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 100 + i}))
		require.NoError(t, e.a.qp.PostSend(e.write(i, 8)))
	}
	require.Equal(t, before, e.lib.Calls("fake0", "Post"), "posting only writes records")
	e.a.drv.Flush()
	require.Equal(t, before+1, e.lib.Calls("fake0", "Post"))
	e.a.drv.Flush()
	require.Equal(t, before+1, e.lib.Calls("fake0", "Post"), "there was nothing to post")
	e.until("completions", func() bool { return len(e.a.wcs) == 8 })
	polls := e.lib.Calls("fake0", "Poll")
	e.a.turn(t)
	require.Equal(t, polls+1, e.lib.Calls("fake0", "Poll"))
}

// Receives that are posted before the queue pair is connected go out in one
// call, at the latest with the modification to RTR.
func TestReceivesBeforeRTR(t *testing.T) {
	e := newEnds(t)
	require.NoError(t, verbs.Init(e.b.qp, verbs.AccessLocalWrite))
	before := e.lib.Calls("fake1", "Post")
	for i := range uint64(8) {
		require.NoError(t, e.b.qp.PostRecv(&verbs.RecvWR{WRID: i}))
	}
	require.ErrorIs(t, e.b.qp.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	require.Equal(t, before, e.lib.Calls("fake1", "Post"))
	require.NoError(t, verbs.Connect(e.b.qp, attrTo(e.a.dev, e.a.qp.num)))
	require.Equal(t, before+1, e.lib.Calls("fake1", "Post"))
}

// SendPush does not wait for the end of the turn.
func TestPush(t *testing.T) {
	e := newEnds(t)
	e.connect()
	before := e.lib.Calls("fake0", "Post")
	wr := e.write(1, 8)
	wr.Flags |= verbs.SendPush
	require.NoError(t, e.a.qp.PostSend(wr))
	require.Equal(t, before+1, e.lib.Calls("fake0", "Post"))
}

// A request that the provider refuses, long after PostSend: those before it
// complete as they do, it says LOC_QP_OP_ERR, those after it are flushed, in
// this order, and the queue pair is in ERR.
func TestRefusedSend(t *testing.T) {
	for name, stubborn := range map[string]bool{"once": false, "for ever": true} {
		t.Run(name, func(t *testing.T) {
			refusing := false
			e := newEnds(t, func(l *hwtest.Library) {
				l.RefuseSend = func(s *ibv.Send) error {
					if refusing && (stubborn || s.RKey == 0xbad && s.Count > 0) {
						return unix.EINVAL
					}
					return nil
				}
			})
			e.connect()
			require.NoError(t, e.a.qp.PostSend(e.write(1, 8)))
			e.a.drv.Flush()
			e.until("first completion", func() bool { return len(e.a.wcs) == 1 })
			refusing = true
			bad := e.write(2, 8)
			bad.RKey = 0xbad
			require.NoError(t, e.a.qp.PostSend(bad))
			require.NoError(t, e.a.qp.PostSend(e.write(3, 8)))
			require.NoError(t, e.a.qp.PostSend(e.write(4, 8)))
			e.a.drv.Flush()
			e.until("all completions", func() bool { return len(e.a.wcs) == 4 })
			ids, list := statuses(e.a.wcs)
			require.Equal(t, []uint64{1, 2, 3, 4}, ids)
			require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCLocQPOpErr, verbs.WCWRFlushErr, verbs.WCWRFlushErr}, list)
			require.Equal(t, verbs.QPSErr, e.a.qp.State())
			require.Zero(t, e.a.qp.sq.used(), "entries are free again")
			require.EqualValues(t, 1, e.a.dev.Stats().PostErrors)
		})
	}
}

func TestRefusedReceive(t *testing.T) {
	refusing := false
	e := newEnds(t, func(l *hwtest.Library) {
		l.RefuseRecv = func(r *ibv.Recv) error {
			if refusing && r.Count > 0 {
				return unix.ENOMEM
			}
			return nil
		}
	})
	e.connect()
	refusing = true
	sge := []verbs.SGE{{Addr: e.a.mr.Addr(), Length: 8, LKey: e.a.mr.LKey()}}
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 1}))
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 2, SGList: sge}))
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 3}))
	e.a.drv.Flush()
	e.until("all completions", func() bool { return len(e.a.wcs) == 3 })
	ids, list := statuses(e.a.wcs)
	require.Equal(t, []uint64{1, 2, 3}, ids)
	require.Equal(t, []verbs.WCStatus{verbs.WCWRFlushErr, verbs.WCLocQPOpErr, verbs.WCWRFlushErr}, list)
}

// The library's handle of an address lives as long as a datagram with it.
func TestAddressHandleOutlivesClose(t *testing.T) {
	e := newEnds(t)
	ud := e.a.newQP(t, verbs.QPTUD)
	require.NoError(t, verbs.StartUD(ud, 1, 0))
	handle, err := e.a.pd.CreateAH(attrTo(e.b.dev, 0).AH)
	require.NoError(t, err)
	wr := &verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, AH: handle, RemoteQPN: 77, RemoteQKey: 1}
	require.NoError(t, ud.PostSend(wr))
	require.NoError(t, handle.Close())
	require.NoError(t, handle.Close(), "twice")
	require.ErrorIs(t, ud.PostSend(wr), verbs.ErrInvalid, "after its end")
	require.Zero(t, e.lib.Calls("fake0", "DestroyAH"))
	e.a.drv.Flush()
	e.until("completion", func() bool { return len(e.a.wcs) == 1 })
	require.Equal(t, 1, e.lib.Calls("fake0", "DestroyAH"))
	require.NoError(t, ud.Close())
}

// A queue pair that ends gives its handles back although nothing completed.
func TestAddressHandleOfClosedQueuePair(t *testing.T) {
	e := newEnds(t)
	ud := e.a.newQP(t, verbs.QPTUD)
	require.NoError(t, verbs.StartUD(ud, 1, 0))
	handle, err := e.a.pd.CreateAH(attrTo(e.b.dev, 0).AH)
	require.NoError(t, err)
	wr := &verbs.SendWR{Opcode: verbs.WRSend, AH: handle, RemoteQPN: 77, RemoteQKey: 1}
	require.NoError(t, ud.PostSend(wr))
	require.NoError(t, handle.Close())
	require.NoError(t, ud.Close())
	require.Equal(t, 1, e.lib.Calls("fake0", "DestroyAH"))
}

// What is in INIT belongs to its creator: it may be closed while the loop polls.
func TestCloseBesideTheLoop(t *testing.T) {
	e := newEnds(t)
	e.connect()
	done := make(chan error)
	go func() {
		var errs error
		for range 20 {
			q, err := e.a.pd.CreateQP(&verbs.QPInitAttr{SendCQ: e.a.cq, RecvCQ: e.a.cq, Type: verbs.QPTRC, Cap: smallCap})
			if err != nil {
				done <- err
				return
			}
			errs = errors.Join(errs, verbs.Init(q, 0), q.PostRecv(&verbs.RecvWR{}), q.Close())
		}
		done <- errs
	}()
	for deadline := time.Now().Add(20 * time.Second); ; {
		require.True(t, time.Now().Before(deadline))
		select {
		case err := <-done:
			require.NoError(t, err)
			return
		default:
			e.a.turn(t)
		}
	}
}

// A Q_Key with the high bit stands for that of the queue pair, whatever the provider makes
// of it.
func TestControlledQKey(t *testing.T) {
	var sent []uint32
	e := newEnds(t, func(l *hwtest.Library) {
		l.RefuseSend = func(s *ibv.Send) error {
			sent = append(sent, s.RemoteQKey)
			return nil
		}
	})
	ud := e.a.newQP(t, verbs.QPTUD)
	require.NoError(t, verbs.StartUD(ud, 77, 0))
	handle, err := e.a.pd.CreateAH(attrTo(e.b.dev, 0).AH)
	require.NoError(t, err)
	for _, key := range []uint32{5, 1 << 31, 1<<31 | 5} {
		require.NoError(t, ud.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, AH: handle, RemoteQPN: 78, RemoteQKey: key}))
	}
	e.a.drv.Flush()
	require.Equal(t, []uint32{5, 77, 77}, sent)
	require.NoError(t, handle.Close())
	require.NoError(t, ud.Close())
}
