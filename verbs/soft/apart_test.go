package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// WRITEs of a few packets share trains: the call to the kernel and the wake-up
// of the peer are what a datagram costs.
func TestShortWritesShareTrains(t *testing.T) {
	p := openPair(t, on("127.0.0.1"), on("127.0.0.2"))
	a, b := newAllocEnd(t, &p.A, verbs.QPTRC), newAllocEnd(t, &p.B, verbs.QPTRC)
	for _, e := range []*allocEnd{a, b} {
		require.NoError(t, verbs.Init(e.qp, verbs.AccessRemoteWrite))
	}
	attr := p.Attr(a.side, b.qp.Num())
	attr.PathMTU = verbs.MTU1024
	require.NoError(t, verbs.Connect(a.qp, attr))
	attr = p.Attr(b.side, a.qp.Num())
	attr.PathMTU = verbs.MTU1024
	require.NoError(t, verbs.Connect(b.qp, attr))

	const messages, size = 8, 4 << 10
	for i := range a.mr.Bytes() {
		a.mr.Bytes()[i] = byte(i * 7 >> 3)
	}
	calls := &countTrains{link: a.qp.(*qp).vec.link}
	a.qp.(*qp).vec.tx.link = calls
	for i := range messages {
		a.sge[0] = verbs.SGE{Addr: a.mr.Addr() + uint64(i*size), Length: size, LKey: a.mr.LKey()}
		a.wr = verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: a.sge[:], RemoteAddr: b.mr.Addr() + uint64(i*size), RKey: b.mr.RKey(),
		}
		require.NoError(t, a.qp.PostSend(&a.wr))
	}
	for deadline := time.Now().Add(patience); a.done < messages && time.Now().Before(deadline); {
		a.turn(t)
		b.turn(t)
	}
	require.Equal(t, messages, a.done)
	require.Equal(t, a.mr.Bytes()[:messages*size], b.mr.Bytes()[:messages*size])
	require.Len(t, calls.sent, 1, "32 KiB are one train")
	require.Equal(t, messages*size/1024, calls.sent[0])
}

// countTrains is a link that remembers how long the trains of the first call
// were; a busy machine may need more.
type countTrains struct {
	link
	sent []int
}

func (c *countTrains) send(t []train) {
	if c.sent == nil {
		for i := range t {
			c.sent = append(c.sent, t[i].count)
		}
	}
	c.link.send(t)
}

// What a message needs beyond full trains: one for its first packet, which is
// longer than those after it, and its end. Where the last packet is not a whole
// MTU it ends the train of the others, although it carries an immediate.
func TestMessageFillsTrains(t *testing.T) {
	const mtu = 1024
	full := maxTrainBytes / (mtu + 16)
	for name, tc := range map[string]struct {
		length uint32
		want   []int
	}{
		"short end":      {512<<10 - 256, []int{2, full, full, full, full, full, full, full, full, 512 - 2 - 8*full}},
		"end of one MTU": {512 << 10, []int{2, full, full, full, full, full, full, full, full, 511 - 2 - 8*full, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPair(t, on("127.0.0.1"), on("127.0.0.2"))
			a, b := newAllocEnd(t, &p.A, verbs.QPTRC), newAllocEnd(t, &p.B, verbs.QPTRC)
			require.NoError(t, verbs.Init(a.qp, verbs.AccessRemoteWrite))
			attr := p.Attr(a.side, b.qp.Num())
			attr.PathMTU = verbs.MTU1024
			require.NoError(t, verbs.Connect(a.qp, attr))
			mr, err := p.A.PD.RegMR(make([]byte, tc.length), verbs.AccessLocalWrite)
			require.NoError(t, err)
			defer func() { require.NoError(t, mr.Close()) }()

			sender := a.qp.(*qp)
			sender.req.cc.window = maxWindow
			trains := &everyTrain{link: sender.vec.link}
			sender.vec.tx.link = trains
			a.sge[0] = verbs.SGE{Addr: mr.Addr(), Length: tc.length, LKey: mr.LKey()}
			a.wr = verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, SGList: a.sge[:], RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			require.NoError(t, a.qp.PostSend(&a.wr))
			a.turn(t)
			require.Equal(t, tc.want, trains.sent)
		})
	}
}

// everyTrain is a link that remembers how long trains were and sends none.
type everyTrain struct {
	link
	sent []int
}

func (l *everyTrain) send(trains []train) {
	for i := range trains {
		l.sent = append(l.sent, trains[i].count)
	}
}
