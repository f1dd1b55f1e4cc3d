package interop

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// pingpong is our end of the ibv_*_pingpong programs (libibverbs/examples of rdma-core): each side sends a message
// for every one that it receives, and the client begins. Before, they exchange their queue pairs over TCP.
type pingpong struct {
	e    *endpoint
	kind verbs.QPType
	many bool // 16 queue pairs, whose receives are one queue in the program
	size int
	n    int // messages in each direction

	qps   []verbs.QP
	psns  []uint32
	rx    verbs.MR // one slot per receive
	tx    verbs.MR // one message per queue pair
	ahs   []verbs.AH
	peers []peer
	slots int
}

const (
	pingpongPort = 18515
	pingpongQKey = 0x11111111
	// pingpongDest is LID, queue pair, PSN and GID in hexadecimal; a NUL follows.
	pingpongDest = "%04x:%06x:%06x:%s"
	// destSize is the length of the text with its NUL.
	destSize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	// ibv_srq_pingpong exchanges this many, however many it uses.
	manyDests = 256
	manyQPs   = 16
	// grhSize is what precedes the message in a UD receive.
	grhSize = 40
)

// prepare makes the queue pairs and posts the receives.
func (p *pingpong) prepare() {
	count := 1
	p.slots = 64
	if p.many {
		count, p.slots = manyQPs, 256
	}
	p.rx, p.tx = p.e.memory(p.slots*p.slotSize()), p.e.memory(count*p.size)
	for range count {
		p.qps = append(p.qps, p.e.qp(p.kind))
		p.psns = append(p.psns, rand.Uint32N(1<<24))
	}
	p.e.do(func() error {
		for _, qp := range p.qps {
			if err := p.init(qp); err != nil {
				return err
			}
		}
		for i := range p.slots {
			if err := p.postRecv(i); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *pingpong) init(qp verbs.QP) error {
	if p.kind == verbs.QPTUD {
		return qp.Modify(&verbs.QPAttr{State: verbs.QPSInit, Port: 1, QKey: pingpongQKey}, verbs.UDInitMask)
	}
	return verbs.Init(qp, 0)
}

func (p *pingpong) slotSize() int { return grhSize + p.size }

// received returns the message in a slot; only UD uses the room for the GRH.
func (p *pingpong) received(slot int) []byte {
	b := p.rx.Bytes()[slot*p.slotSize():][:p.slotSize()]
	if p.kind == verbs.QPTUD {
		return b[grhSize:]
	}
	return b[:p.size]
}

func (p *pingpong) postRecv(slot int) error {
	wr := verbs.RecvWR{WRID: uint64(slot), SGList: sge(p.rx, slot*p.slotSize(), p.slotSize())}
	return p.qps[slot*len(p.qps)/p.slots].PostRecv(&wr)
}

// dests returns our queue pairs in the peer's format.
func (p *pingpong) dests() []byte {
	gid := verbs.GIDOf(p.e.addr)
	var b []byte
	for i := range p.exchanged() {
		qpn, psn := uint32(0), uint32(0)
		if i < len(p.qps) {
			qpn, psn = p.qps[i].Num(), p.psns[i]
		}
		b = append(fmt.Appendf(b, pingpongDest, 0, qpn, psn, hex.EncodeToString(gid[:])), 0)
	}
	return b
}

func (p *pingpong) exchanged() int {
	if p.many {
		return manyDests
	}
	return 1
}

func (p *pingpong) readDests(r io.Reader) error {
	b := make([]byte, p.exchanged()*destSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	for i := range p.qps {
		d, err := parseDest(b[i*destSize:][:destSize])
		if err != nil {
			return err
		}
		p.peers = append(p.peers, d)
	}
	return nil
}

func parseDest(b []byte) (p peer, err error) {
	var lid uint32
	var gid string
	if _, err = fmt.Sscanf(string(bytes.TrimRight(b, "\x00")), "%x:%x:%x:%s", &lid, &p.qpn, &p.psn, &gid); err != nil {
		return p, fmt.Errorf("destination %q: %w", b, err)
	}
	if n, err := hex.Decode(p.gid[:], []byte(gid)[:min(len(gid), 32)]); err != nil || n != len(p.gid) {
		return p, fmt.Errorf("destination %q: gid of %d bytes: %w", b, n, err)
	}
	return p, nil
}

// client exchanges addresses with a server, which connects first.
func (p *pingpong) client(conn net.Conn) {
	t := p.e.t
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err := conn.Write(p.dests())
	require.NoError(t, err)
	require.NoError(t, p.readDests(conn))
	p.connect()
	_, err = conn.Write([]byte("done\x00"))
	require.NoError(t, err)
}

// server exchanges addresses with a client.
func (p *pingpong) server(conn net.Conn) {
	t := p.e.t
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	require.NoError(t, p.readDests(conn))
	p.connect()
	_, err := conn.Write(p.dests())
	require.NoError(t, err)
	done := make([]byte, 5)
	_, err = io.ReadFull(conn, done)
	require.NoError(t, err)
}

func (p *pingpong) connect() {
	p.e.do(func() error {
		for i, qp := range p.qps {
			attr := p.e.attrTo(p.peers[i], p.psns[i])
			var err error
			switch p.kind {
			case verbs.QPTRC:
				err = verbs.Connect(qp, attr)
			case verbs.QPTUC:
				err = verbs.ConnectUC(qp, attr)
			default:
				err = p.startUD(qp, attr)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *pingpong) startUD(qp verbs.QP, attr verbs.QPAttr) error {
	ah, err := p.e.pd.CreateAH(attr.AH)
	if err != nil {
		return err
	}
	p.ahs = append(p.ahs, ah)
	p.e.closers = append(p.e.closers, ah.Close)
	attr.State = verbs.QPSRTR
	if err := qp.Modify(&attr, verbs.QPAttrState); err != nil {
		return err
	}
	attr.State = verbs.QPSRTS
	return qp.Modify(&attr, verbs.SQPSNMask)
}

// pattern returns the content of our message number n. The programs send back what they received last, from the one
// buffer of all their receives, so with several queue pairs all messages must be alike.
func (p *pingpong) pattern(n int) []byte {
	if p.many {
		n = 0
	}
	b := make([]byte, p.size)
	if p.size < 4 {
		// With its padding it must not look like an Ethernet type to tshark.
		return bytes.Repeat([]byte{'0' + byte(n%10)}, p.size)
	}
	for i := range b {
		b[i] = byte(i*7 + i>>8 + n*13 + 1)
	}
	return b
}

func (p *pingpong) postSend(i, n int) error {
	copy(p.tx.Bytes()[i*p.size:], p.pattern(n))
	wr := verbs.SendWR{
		WRID: sendID | uint64(i), Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: sge(p.tx, i*p.size, p.size),
	}
	if p.kind == verbs.QPTUD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ahs[i], p.peers[i].qpn, pingpongQKey
	}
	return p.qps[i].PostSend(&wr)
}

// sendID distinguishes our sends from receives, whose ID is the number of their slot.
const sendID = 1 << 32

// pinging is the progress of one queue pair.
type pinging struct {
	sent, acked, received int
}

// maySend tells whether everything sent is complete and it is our turn.
func (s *pinging) maySend(first bool) bool {
	if first {
		return s.sent == s.acked && s.sent == s.received
	}
	return s.sent == s.acked && s.sent < s.received
}

// play exchanges the messages and checks each. A message may be sent once the last one was answered and has
// completed, as in the programs. They count the messages of all queue pairs together and accept more.
func (p *pingpong) play(first bool) {
	state := make([]pinging, len(p.qps))
	for i := range state {
		if first {
			p.send(i, &state[i])
		}
	}
	for received, acked := 0, 0; received < p.n || acked < p.n; {
		wc := p.e.good()
		i := p.indexOf(wc.QPNum)
		s := &state[i]
		if wc.WRID&sendID != 0 {
			require.Equal(p.e.t, verbs.WCSend, wc.Opcode)
			s.acked++
			acked++
		} else {
			p.check(int(wc.WRID), wc, s, first)
			s.received++
			received++
		}
		if s.maySend(first) && acked < p.n && s.sent < p.n {
			p.send(i, s)
		}
	}
}

func (p *pingpong) send(i int, s *pinging) {
	p.e.t.Helper()
	p.e.do(func() error { return p.postSend(i, s.sent) })
	s.sent++
}

func (p *pingpong) indexOf(qpn uint32) int {
	for i, qp := range p.qps {
		if qp.Num() == qpn {
			return i
		}
	}
	require.FailNow(p.e.t, "completion of a queue pair that is not ours", "%#x", qpn)
	return -1
}

// check compares a message with what we sent last and posts its slot again. The first message of a client is its own:
// 0x7b, or with shared receives 0, mixed with what the other queue pairs have received meanwhile.
func (p *pingpong) check(slot int, wc verbs.WC, s *pinging, first bool) {
	t := p.e.t
	require.Equal(t, verbs.WCRecv, wc.Opcode)
	want := p.size
	if p.kind == verbs.QPTUD {
		want += grhSize
		p.checkGRH(slot, wc)
	}
	require.EqualValues(t, want, wc.ByteLen)
	switch got := p.received(slot); {
	case p.many:
		pattern := p.pattern(0)
		for i, b := range got {
			if b != pattern[i] && (first || b != 0) {
				require.FailNow(t, "content", "message %d, byte %d: %#x", s.received, i, b)
			}
		}
	case !first && s.received == 0:
		require.Equal(t, bytes.Repeat([]byte{0x7b}, p.size), got)
	default:
		require.True(t, bytes.Equal(p.pattern(s.sent-1), got), "content of message %d", s.received)
	}
	p.e.do(func() error { return p.postRecv(slot) })
}

// checkGRH checks what precedes a datagram: the IPv6 header, or in the last 20 bytes the IPv4 header (IBTA vol. 1,
// annex A17).
func (p *pingpong) checkGRH(slot int, wc verbs.WC) {
	t := p.e.t
	require.NotZero(t, wc.Flags&verbs.WCGRH)
	require.Equal(t, p.peers[0].qpn, wc.SrcQP)
	grh := p.rx.Bytes()[slot*p.slotSize():][:grhSize]
	src, dst := p.peers[0].gid.Addr().AsSlice(), p.e.addr.AsSlice()
	require.Equal(t, append(append([]byte{}, src...), dst...), grh[grhSize-len(src)-len(dst):])
}

func TestPingpongDest(t *testing.T) {
	text := "0000:000011:7763b7:00000000000000000000ffff0a4d0002\x00"
	require.Len(t, text, destSize)
	d, err := parseDest([]byte(text))
	require.NoError(t, err)
	require.Equal(t, uint32(0x11), d.qpn)
	require.Equal(t, uint32(0x7763b7), d.psn)
	require.Equal(t, "10.77.0.2", d.gid.Addr().String())
	for n := range len(text) - 1 {
		_, err := parseDest([]byte(text[:n]))
		require.Error(t, err, n)
	}
}
