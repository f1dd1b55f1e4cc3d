package soft

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// tape is a link that keeps what is sent, each datagram with its place in its train.
type tape struct {
	link
	train int
	got   []taped
}

type taped struct {
	place int
	data  string
}

func (l *tape) maxTrain() int { return l.train }

func (l *tape) send(trains []train) {
	for i := range trains {
		tr := &trains[i]
		all := bytes.Join(tr.bufs, nil)
		for place := range tr.count {
			n := min(tr.size, len(all))
			l.got = append(l.got, taped{place, string(all[:n])})
			all = all[n:]
		}
		if len(all) > 0 {
			panic("more bytes than datagrams")
		}
	}
}

// A run is what the same packets are one by one: header, payload, ICRC, and how
// they are cut into trains.
func TestRunIsItsPackets(t *testing.T) {
	payload := make([]byte, 600<<10)
	for i := range payload {
		payload[i] = byte(i ^ i>>8 ^ i>>16)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := &path{dst: netip.MustParseAddrPort(rapid.SampledFrom([]string{"10.0.0.2:4791", "[fd00::2]:4791"}).Draw(t, "to"))}
		p.icrc = newICRC(netip.AddrPortFrom(p.dst.Addr().Prev(), 0xc001), p.dst)
		mtu := 256 << rapid.IntRange(0, 4).Draw(t, "mtu")
		limit := rapid.SampledFrom([]int{1, 2, maxTrainCount}).Draw(t, "train")
		one, run := &tape{train: limit}, &tape{train: limit}
		a, b := newTransmitter(one, true), newTransmitter(run, true)
		h := wire.Header{
			Opcode: wire.RCWriteMiddle, Migrated: true, PKey: 0xffff, DestQP: rapid.Uint32Range(0, mask24).Draw(t, "qp"),
			PSN: rapid.OneOf(rapid.Uint32Range(0, mask24), rapid.Uint32Range(mask24-100, mask24)).Draw(t, "psn"),
		}
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			if rapid.Bool().Draw(t, "other") { // something else is in the train
				other := h
				other.Opcode, other.Imm = wire.RCWriteLastImm, 7
				a.add(p, &other, [][]byte{payload[:33]}, 33)
				b.add(p, &other, [][]byte{payload[:33]}, 33)
			}
			n := rapid.IntRange(1, len(payload)/4096).Draw(t, "packets")
			every := rapid.SampledFrom([]uint32{32, 128}).Draw(t, "every")
			last := rapid.Bool().Draw(t, "last")
			for i := range n {
				each := h
				each.PSN = wire.PSNAdd(h.PSN, i)
				each.AckReq = each.PSN%every == 0 || last && i == n-1
				a.add(p, &each, [][]byte{payload[i*mtu:][:mtu]}, mtu)
			}
			b.addRun(p, &h, payload[:n*mtu], mtu, every, last)
			h.PSN = wire.PSNAdd(h.PSN, n)
		}
		a.flush()
		b.flush()
		require.True(t, len(one.got) == len(run.got), "%d datagrams, %d in runs", len(one.got), len(run.got))
		for i := range one.got {
			require.True(t, one.got[i] == run.got[i], "datagram %d of %d", i, len(one.got))
		}
	})
}

// What a program writes into its memory after add changes nothing that is copied: small payloads, and repetitions.
func TestCopiesDoNotChange(t *testing.T) {
	p := &path{dst: netip.MustParseAddrPort("10.0.0.2:4791")}
	p.icrc = newICRC(netip.AddrPortFrom(p.dst.Addr().Prev(), 0xc001), p.dst)
	h := wire.Header{Opcode: wire.RCWriteMiddle, Migrated: true, PKey: 0xffff, DestQP: 5}
	for _, n := range []int{1, 255, 256, 1500, copyBelow - 1, copyBelow, 4096} {
		payload := bytes.Repeat([]byte("program"), n)[:n]
		still, changed := &tape{train: maxTrainCount}, &tape{train: maxTrainCount}
		a, b := newTransmitter(still, true), newTransmitter(changed, true)
		for range 3 {
			a.put(p, &h, [][]byte{bytes.Clone(payload)}, n, true)
			b.put(p, &h, [][]byte{payload[:n/2], payload[n/2:]}, n, n >= copyBelow)
			payload[n-1]++
		}
		a.flush()
		b.flush()
		require.Equal(t, still.got, changed.got, "%d bytes", n)
		require.NotEqual(t, still.got[0].data, still.got[1].data)
	}
}

const mask24 = 1<<24 - 1

// asked are the packets that asked for an acknowledgement, by their number.
func (q *hostileQP) asked() (which []int) {
	for i, s := range q.sent {
		if s.AckReq {
			which = append(which, i)
		}
	}
	return which
}

// In a message longer than the window, the last packet that the window lets out
// asks, and its middle goes out in the order of the PSNs.
func TestBurstAsksWhereTheWindowEnds(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	const window = 10
	q.QP.(*qp).req.cc.window = window * 256
	require.NoError(t, q.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: []verbs.SGE{h.local.sge(0, 15*256+1)}}))
	h.m.w.run(20*time.Microsecond, nil)
	require.Len(t, q.sent, window)
	for i, s := range q.sent {
		require.Equal(t, wire.PSNAdd(hostilePSN, i), s.PSN)
		want := wire.RCSendMiddle
		if i == 0 {
			want = wire.RCSendFirst
		}
		require.Equal(t, want, s.Opcode, "packet %d", i)
	}
	require.Equal(t, []int{6, window - 1}, q.asked(), "PSN 0 and the last")

	q.sent = nil
	h.peerPacket(q, wire.Header{Opcode: wire.RCAcknowledge, Syndrome: wire.ACK, PSN: wire.PSNAdd(hostilePSN, window-1)}, nil)
	require.Len(t, q.sent, 16-window)
	require.Equal(t, wire.PSNAdd(hostilePSN, window), q.sent[0].PSN)
	require.Equal(t, wire.RCSendLast, q.sent[5].Opcode)
	require.Equal(t, []int{5}, q.asked())
}

// Of messages that go out one right after the other the last asks for the
// acknowledgement of all. Where the next one may have to wait, the one before asks.
func TestMessagesAskTogether(t *testing.T) {
	write := verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline, Inline: make([]byte, 8), RemoteAddr: 0x1000, RKey: 7}
	fenced := write
	fenced.Flags |= verbs.SendFence
	for name, c := range map[string]struct {
		wrs    []verbs.SendWR
		window float64
		srtt   int64
		want   []int
	}{
		"the last":                  {wrs: []verbs.SendWR{write, write, write, write}, want: []int{3}},
		"one alone":                 {wrs: []verbs.SendWR{write}, want: []int{0}},
		"the window may grow":       {wrs: []verbs.SendWR{write, write, write}, window: maxWindow - 1, want: []int{0, 1, 2}},
		"paced":                     {wrs: []verbs.SendWR{write, write}, srtt: paceFromRTT, want: []int{0, 1}},
		"in front of a fence":       {wrs: []verbs.SendWR{write, write, fenced, write}, want: []int{1, 3}},
		"in front of a READ":        {wrs: []verbs.SendWR{write, write, {Opcode: verbs.WRRDMARead, RemoteAddr: 0x1000, RKey: 7}}, want: []int{1, 2}},
		"in front of a local order": {wrs: []verbs.SendWR{write, write, {Opcode: verbs.WRLocalInv, InvRKey: 12345}}, want: []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t, 1)
			q := h.qps[0]
			r := &q.QP.(*qp).req
			if r.cc.window = c.window; c.window == 0 {
				r.cc.window = maxWindow
			}
			r.rtt.srtt = c.srtt
			for i := range c.wrs {
				require.NoError(t, q.PostSend(&c.wrs[i]))
			}
			h.m.w.run(2*time.Millisecond, func() bool { return len(q.asked()) == len(c.want) })
			require.Equal(t, c.want, q.asked())
		})
	}
}

// The requester asks again for an acknowledgement that was left to the next
// message, when that cannot be sent: no wait is endless, and each message gets
// its own status.
func TestMessageAsksWhenTheNextOneFails(t *testing.T) {
	h := newHostile(t, 1)
	q := h.qps[0]
	q.QP.(*qp).req.cc.window = maxWindow
	h.statuses = nil
	for _, key := range []uint32{h.local.LKey(), 0xdead00} {
		sge := h.local.sge(0, 100)
		sge.LKey = key
		require.NoError(t, q.PostSend(&verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, SGList: []verbs.SGE{sge}, RemoteAddr: 0x1000, RKey: 7,
		}))
	}
	h.m.w.run(20*time.Microsecond, nil)
	require.Len(t, q.sent, 1)
	require.Empty(t, q.asked())
	h.m.w.run(time.Second, func() bool { return len(q.asked()) > 0 })
	require.NotEmpty(t, q.asked(), "the repetition asks")
	for _, s := range q.sent {
		require.EqualValues(t, hostilePSN, s.PSN)
	}
	h.peerPacket(q, wire.Header{Opcode: wire.RCAcknowledge, Syndrome: wire.ACK, PSN: hostilePSN}, nil)
	require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCLocProtErr}, h.statuses)
}
