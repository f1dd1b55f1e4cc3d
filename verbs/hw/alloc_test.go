package hw

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// instant is an adapter that completes everything at once, and counts calls.
// What it does not have here is not called.
type instant struct {
	ibv.Context

	wrids []uint64
	calls int
	fails error // of Notify
}

func (c *instant) Post(b *ibv.Batch) int {
	c.calls++
	for i := range b.Recvs {
		c.wrids = append(c.wrids, b.Recvs[i].WRID)
	}
	for i := range b.Sends {
		c.wrids = append(c.wrids, b.Sends[i].WRID)
	}
	return 0
}

func (c *instant) Poll(_ ibv.CQ, wcs []ibv.Completion) int {
	c.calls++
	n := min(len(wcs), len(c.wrids))
	for i := range n {
		wcs[i] = ibv.Completion{WRID: c.wrids[i]}
	}
	c.wrids = c.wrids[:copy(c.wrids, c.wrids[n:])]
	return n
}

func (c *instant) Notify([]ibv.CQ) error { c.calls++; return c.fails }

func (c *instant) Events(_ ibv.Channel, ids []uint64) int {
	c.calls++
	ids[0] = 1 // the queue's number
	return 1
}

func (c *instant) CreateCQ(depth int, _ uint64, _ ibv.Channel, _ int) (ibv.CQ, int, error) {
	return 1, depth, nil
}

func (c *instant) CreateQP(*ibv.QPInit) (ibv.QP, uint32, error) { return 1, 1, nil }

// newInstant makes a device on it, with queue pairs in RTS.
func newInstant(tb testing.TB, pairs int) (*instant, *driver, *cq, []*qp) {
	ctx := &instant{}
	d := &Device{ctx: ctx, holders: 1, async: verbs.NewAsyncChannel(), attr: verbs.DeviceAttr{
		Ops: verbs.OpSend | verbs.OpRDMAWrite, MaxCQE: 1 << 12, MaxQPWR: maxWR, MaxSGE: 4, MaxInline: 64, MaxMsgSize: maxMsg,
	}}
	v := &vector{dev: d}
	v.cqs.Store(new([]*cq))
	d.vectors = []*vector{v}
	c, err := d.CreateCQ(verbs.CQAttr{Depth: 1 << 10})
	require.NoError(tb, err)
	p := &pd{dev: d}
	list := make([]*qp, pairs)
	for i := range list {
		q, err := p.CreateQP(&verbs.QPInitAttr{SendCQ: c, RecvCQ: c, Type: verbs.QPTRC, Cap: verbs.QPCap{
			MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64,
		}})
		require.NoError(tb, err)
		list[i] = q.(*qp)
		list[i].begin()
		list[i].state = verbs.QPSRTS
	}
	return ctx, &driver{v: v}, c.(*cq), list
}

// turn is a turn of a shard: some queue pairs send and receive, then it looks
// whether it may sleep.
func turn(drv *driver, c *cq, pairs []*qp, wr *verbs.SendWR, recv *verbs.RecvWR, wcs []verbs.WC) error {
	drv.Progress(time.Time{})
	if _, err := c.Poll(wcs); err != nil {
		return err
	}
	for _, q := range pairs {
		for range 4 {
			if err := q.PostRecv(recv); err != nil {
				return err
			}
			if err := q.PostSend(wr); err != nil {
				return err
			}
		}
	}
	drv.Flush()
	return nil
}

// A turn calls the library twice, to poll and to post, however much it does,
// and nothing allocates.
func TestTurnAllocatesNothing(t *testing.T) {
	ctx, drv, c, pairs := newInstant(t, 8)
	wcs := make([]verbs.WC, 256)
	for name, wr := range map[string]*verbs.SendWR{
		"SGE":    {Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Length: 8}}},
		"inline": {Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled | verbs.SendInline, Inline: make([]byte, 16)},
	} {
		t.Run(name, func(t *testing.T) {
			recv := &verbs.RecvWR{}
			require.NoError(t, turn(drv, c, pairs, wr, recv, wcs)) // grows what grows once
			ctx.calls = 0
			require.NoError(t, turn(drv, c, pairs, wr, recv, wcs))
			require.Equal(t, 2, ctx.calls)
			var err error
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if e := turn(drv, c, pairs, wr, recv, wcs); e != nil {
					err = e
				}
			}))
			require.NoError(t, err)
			require.Zero(t, testing.AllocsPerRun(100, func() {
				drv.Ready()
				drv.Arm()
				drv.Disarm()
				_, err = c.Poll(wcs)
			}))
			require.NoError(t, err)
			for c.stashedNow() > 0 || len(ctx.wrids) > 0 {
				_, err = c.Poll(wcs)
				require.NoError(t, err)
			}
		})
	}
}

func BenchmarkTurn(b *testing.B) {
	_, drv, c, pairs := newInstant(b, 8)
	wr := &verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Length: 8}}}
	recv, wcs := &verbs.RecvWR{}, make([]verbs.WC, 256)
	b.ReportAllocs()
	for b.Loop() {
		if err := turn(drv, c, pairs, wr, recv, wcs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/request")
}
