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
	g := newGuarded(t, true)
	const messages, size = 8, 4 << 10
	from, to := g.mrs[0], g.mrs[1]
	for i := range from.Bytes() {
		from.Bytes()[i] = byte(i * 7 >> 3)
	}
	calls := &countTrains{link: g.qps[0].vec.link}
	g.qps[0].vec.tx.link = calls
	for i := range uint64(messages) {
		require.NoError(t, g.qps[0].PostSend(&verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{{Addr: from.Addr() + i*size, Length: size, LKey: from.LKey()}},
			RemoteAddr: to.Addr() + i*size, RKey: to.RKey(),
		}))
	}
	g.must(time.Second, "all have completed", func() bool { return len(g.wcs[0]) == messages })
	require.Equal(t, from.Bytes()[:messages*size], to.Bytes()[:messages*size])
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
			g := newGuarded(t, true)
			sender := g.qps[0]
			mr, err := sender.pd.RegMR(make([]byte, tc.length), verbs.AccessLocalWrite)
			require.NoError(t, err)
			defer func() { require.NoError(t, mr.Close()) }()
			sender.req.cc.window = maxWindow
			trains := &everyTrain{link: sender.vec.link}
			sender.vec.tx.link = trains
			require.NoError(t, sender.PostSend(&verbs.SendWR{
				Opcode: verbs.WRRDMAWriteWithImm, SGList: []verbs.SGE{{Addr: mr.Addr(), Length: tc.length, LKey: mr.LKey()}},
				RemoteAddr: g.mrs[1].Addr(), RKey: g.mrs[1].RKey(),
			}))
			g.run(0, nil)
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
