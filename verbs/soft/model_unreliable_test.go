package soft

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// modelLossy is one direction of unreliable messages: what was sent, and what
// may therefore arrive. Each message begins with its number and is
// pseudo-random after it.
type modelLossy struct {
	t      simTB
	w      *simWorld
	rng    *rand.Rand
	qp     verbs.QP
	src    *modelRegion
	target *modelRegion // of the peer: each WRITE has a place of its own
	sent   []modelLossyMessage
	sendID uint64
	done   uint64 // completions of sends
	// of the peer
	recvs   *modelRecvs
	arrived []int // how often each message did
	last    int   // newest that did, plus one
}

type modelLossyMessage struct {
	op   verbs.WROpcode
	data []byte
	imm  uint32
	off  int // WRITE
}

// message makes the next one.
func (d *modelLossy) message(op verbs.WROpcode, n int) *modelLossyMessage {
	data := make([]byte, n)
	fillRandom(d.rng, data)
	if n >= 4 {
		binary.BigEndian.PutUint32(data, uint32(len(d.sent)))
	}
	d.sent = append(d.sent, modelLossyMessage{op: op, data: data, imm: uint32(len(d.sent))})
	d.arrived = append(d.arrived, 0)
	return &d.sent[len(d.sent)-1]
}

// post sends a message from a fresh piece of src; it says false if the queue is full.
func (d *modelLossy) post(m *modelLossyMessage, change func(wr *verbs.SendWR)) {
	off := int(d.sendID) % 16 * (d.src.size / 16)
	copy(d.src.bytes()[off:], m.data)
	d.sendID++
	wr := verbs.SendWR{
		WRID: d.sendID, Opcode: m.op, Flags: verbs.SendSignaled, ImmData: m.imm,
		SGList: d.src.cut(d.rng, off, len(m.data), 2),
	}
	change(&wr)
	require.NoError(d.t, d.qp.PostSend(&wr))
}

func (d *modelLossy) full() bool { return d.sendID-d.done >= 16 }

// complete checks the completion of a send: always a success, in order.
func (d *modelLossy) complete(wc *verbs.WC) {
	d.done++
	require.Equal(d.t, verbs.WCSuccess, wc.Status)
	require.Equal(d.t, d.done, wc.WRID)
}

// receive checks that what arrives was sent; ordered transports never go back.
func (d *modelLossy) receive(wc *verbs.WC, ordered bool) {
	require.Equal(d.t, verbs.WCSuccess, wc.Status)
	r := d.recvs.take(wc.WRID)
	require.GreaterOrEqual(d.t, int(wc.ByteLen), d.recvs.prefix*btoi(wc.Opcode == verbs.WCRecv))
	i := d.which(wc, d.recvs.contents(r, int(min(wc.ByteLen, uint32(d.recvs.slots.each)))))
	m := &d.sent[i]
	got := d.recvs.contents(r, int(wc.ByteLen))
	if m.op == verbs.WRRDMAWriteWithImm {
		require.Equal(d.t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		got = d.target.bytes()[m.off : m.off+len(m.data)]
		require.EqualValues(d.t, len(m.data), wc.ByteLen)
	} else {
		require.Equal(d.t, verbs.WCRecv, wc.Opcode)
		got = got[d.recvs.prefix:]
	}
	require.True(d.t, bytes.Equal(m.data, got), "message %d of %d bytes arrived with %d, or with others", i, len(m.data), len(got))
	if ordered {
		require.GreaterOrEqual(d.t, i, d.last, "messages in order and once")
	}
	d.last = i + 1
	d.arrived[i]++
	d.recvs.done(r)
}

// which message is it? The immediate tells, else the contents do.
func (d *modelLossy) which(wc *verbs.WC, got []byte) int {
	i := int(wc.ImmData)
	if wc.Flags&verbs.WCWithImm == 0 {
		require.GreaterOrEqual(d.t, len(got), d.recvs.prefix+4, "every message without immediate has a number")
		i = int(binary.BigEndian.Uint32(got[d.recvs.prefix:]))
	}
	require.Less(d.t, i, len(d.sent), "a message nobody sent: %+v", wc)
	require.Equal(d.t, wc.Flags&verbs.WCWithImm != 0, d.sent[i].op != verbs.WRSend)
	return i
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// lossy makes the two queues of a direction from side 0 to side 1 over queue
// pairs of type qt.
func (m *model) lossy(qt verbs.QPType, room int) (*modelLossy, *verbs.QP) {
	t := m.t
	d := &modelLossy{t: t, w: m.w, rng: m.rng}
	ordered := qt == verbs.QPTUC
	var qps [2]verbs.QP
	for side := range qps {
		l := m.nodes[side].loops[0]
		cq := m.pollCQ(side, l, func(wc *verbs.WC) {
			if wc.WRID&modelRecvID != 0 {
				d.receive(wc, ordered)
			} else {
				d.complete(wc)
			}
		})
		qp, err := m.pds[side].CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: qt,
			Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 3},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, qp.Close()) })
		qps[side] = qp
	}
	msg := modelMaxPackets * m.cfg.mtu.Bytes()
	d.qp = qps[0]
	d.src = newRegion(t, m.pds[0], m.rng, 16*msg, 0)
	if ordered {
		d.target = newRegion(t, m.pds[1], m.rng, room, modelRemote)
	}
	d.recvs = m.newRecvs(1, m.nodes[1].loops[0], msg+64, qps[1].PostRecv)
	return d, &qps[1]
}

// Unreliable connections deliver messages whole, in order, or not at all.
func TestModelUC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.vectors = 1
		m := newModel(t, c)
		msg := modelMaxPackets * c.mtu.Bytes()
		const most = 40
		d, peer := m.lossy(verbs.QPTUC, most*msg)
		for side, qp := range []verbs.QP{d.qp, *peer} {
			require.NoError(t, verbs.Init(qp, modelRemote))
			attr := m.attr(side)
			attr.DestQPNum = []verbs.QP{d.qp, *peer}[1-side].Num()
			require.NoError(t, verbs.ConnectUC(qp, attr))
		}
		for i := range rapid.IntRange(1, most).Draw(t, "messages") {
			op := rapid.SampledFrom([]verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm, verbs.WRRDMAWriteWithImm, verbs.WRRDMAWrite}).Draw(t, "op")
			n := drawLength(t, c.mtu.Bytes())
			if op == verbs.WRSend {
				n = max(n, 4)
			}
			x := d.message(op, n)
			x.off = i * msg
			m.w.must(time.Minute, "room in the send queue", func() bool { return !d.full() })
			d.post(x, func(wr *verbs.SendWR) {
				if op == verbs.WRRDMAWrite || op == verbs.WRRDMAWriteWithImm {
					wr.RemoteAddr, wr.RKey = d.target.addr(x.off), d.target.RKey()
				}
			})
		}
		d.finish(m.cfg)
		d.target.checkFrame(t)
	})
}

// finish waits for the sender and checks what a network without faults loses:
// nothing, unless there was no receive.
func (d *modelLossy) finish(c modelConfig) {
	d.w.must(time.Minute, "completions of sends", func() bool { return d.done == d.sendID })
	d.w.run(time.Second, nil)
	d.recvs.slots.checkFrame(d.t)
	require.Zero(d.t, d.w.net.stats.bufferOverflows)
	if f := c.faults[0]; f.loss+f.reorder+f.duplicate+f.corrupt > 0 || c.lazy > 0 || len(c.pauses) > 0 ||
		c.noTrains > 1 || c.recvs < len(d.sent) {
		return
	}
	for i, n := range d.arrived {
		if d.sent[i].op != verbs.WRRDMAWrite {
			require.Equal(d.t, 1, n, "message %d", i)
		}
	}
}

// Unreliable datagrams arrive whole or not at all, each from the source it names.
func TestModelUD(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.vectors = 1
		m := newModel(t, c)
		d, peer := m.lossy(verbs.QPTUD, 0)
		d.recvs.prefix = 40
		const qkey = 0x11223344
		require.NoError(t, verbs.StartUD(d.qp, qkey+1, c.psn[0]))
		require.NoError(t, verbs.StartUD(*peer, qkey, c.psn[1]))
		attr := m.attr(0)
		ah, err := m.pds[0].CreateAH(attr.AH)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ah.Close()) })
		strangers := 0
		for range rapid.IntRange(1, 40).Draw(t, "messages") {
			op := rapid.SampledFrom([]verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm}).Draw(t, "op")
			x := d.message(op, rapid.IntRange(4*btoi(op == verbs.WRSend), c.mtu.Bytes()).Draw(t, "length"))
			key := uint32(qkey)
			if rapid.IntRange(0, 9).Draw(t, "key") == 0 {
				key--
				strangers = len(d.sent)
			}
			m.w.must(time.Minute, "room in the send queue", func() bool { return !d.full() })
			d.post(x, func(wr *verbs.SendWR) {
				wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, (*peer).Num(), key
			})
			if strangers == len(d.sent) {
				m.w.must(time.Minute, "the completion", func() bool { return d.done == d.sendID })
				m.w.run(10*time.Millisecond, nil)
				require.Zero(t, d.arrived[strangers-1], "a datagram with a wrong key")
				d.arrived[strangers-1] = 1 // as the sum at the end wants it
			}
		}
		d.finish(m.cfg)
	})
}
