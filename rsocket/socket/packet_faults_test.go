package socket

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/resolution"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs"
)

// faults is what happens to the messages of UD queue pairs, in parts of a thousand. The device completes what is sent
// in any case, as it does with what a network loses.
type faults struct {
	loss, double, late atomic.Int32
	lost               atomic.Int64
}

// faultyPD makes queue pairs that suffer faults.
type faultyPD struct {
	verbs.PD
	faults *faults
	mu     sync.Mutex
	mrs    []verbs.MR
}

func (p *faultyPD) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.AllocMR(size, access)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mrs = append(p.mrs, mr)
	return mr, err
}

// payload copies what a work request names.
func (p *faultyPD) payload(g verbs.SGE) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, mr := range p.mrs {
		if mr.LKey() == g.LKey {
			return bytes.Clone(mr.Bytes()[g.Addr-mr.Addr():][:g.Length])
		}
	}
	panic("no such memory")
}

func (p *faultyPD) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	if attr.Type != verbs.QPTUD {
		return p.PD.CreateQP(attr)
	}
	a := *attr
	a.SQSigAll, a.Cap.MaxInline, a.Cap.MaxSendWR = false, 512, 4*a.Cap.MaxSendWR
	qp, err := p.PD.CreateQP(&a)
	return &faultyQP{QP: qp, pd: p, rand: rand.New(rand.NewPCG(1, uint64(len(p.mrs))))}, err
}

type faultyQP struct {
	verbs.QP
	pd   *faultyPD
	rand *rand.Rand
	late []*verbs.SendWR
}

// noQPN is a queue pair that does not exist.
const noQPN = 0xfffff0

func (q *faultyQP) PostSend(wr *verbs.SendWR) error {
	f := q.pd.faults
	hit := func(n *atomic.Int32) bool { return q.rand.Int32N(1000) < n.Load() }
	send := *wr
	send.Flags |= verbs.SendSignaled
	inline := *wr
	inline.Flags |= verbs.SendInline
	switch small := wr.SGList[0].Length <= 512; {
	case hit(&f.loss):
		f.lost.Add(1)
		send.RemoteQPN = noQPN
	case small && hit(&f.late):
		inline.Inline, inline.SGList = q.pd.payload(wr.SGList[0]), nil
		q.late = append(q.late, &inline)
		send.RemoteQPN = noQPN
	case small && hit(&f.double):
		inline.Inline, inline.SGList = q.pd.payload(wr.SGList[0]), nil
		if err := q.QP.PostSend(&inline); err != nil {
			return err
		}
	}
	if len(q.late) > 0 && q.rand.IntN(4) == 0 {
		_ = q.QP.PostSend(q.late[0]) // its address handle may be gone: then it is lost
		q.late = q.late[1:]
	}
	return q.QP.PostSend(&send)
}

func faultyPair(t testing.TB, f *faults) *packetPair {
	wrap := func(pd verbs.PD) verbs.PD { return &faultyPD{PD: pd, faults: f} }
	d := softDevices(t, []string{"127.0.0.1"}, []string{"127.0.0.2"})
	return pairOn(t, PacketListenConfig{RecvBuffer: 8 << 20, RecvSlots: 1024}, stackOn(t, d[0], wrap), stackOn(t, d[1], wrap),
		"127.0.0.1:0", "127.0.0.2:0")
}

func numberedPayload(i int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(i))
	return append(b, bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i%200)...)
}

// The network loses, doubles and reorders: what arrives is what was sent, and most of it does.
func TestPacketFaults(t *testing.T) {
	leak.Check(t)
	var f faults
	p := faultyPair(t, &f)
	p.resolve(t)
	f.loss.Store(100)
	f.double.Store(50)
	f.late.Store(100)
	const n = 3000
	var wg sync.WaitGroup
	got := [2][n]int{}
	for i, side := range []struct {
		c  *PacketConn
		to netip.AddrPort
	}{{p.a, p.toB}, {p.b, p.toA}} {
		require.NoError(t, side.c.SetReadDeadline(time.Now().Add(20*time.Second)))
		wg.Go(func() {
			for j := range n {
				if _, err := side.c.WriteToUDPAddrPort(numberedPayload(j), side.to); err != nil {
					t.Error(err)
				}
				if j%10 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			time.Sleep(200 * time.Millisecond)
			_ = side.c.SetReadDeadline(time.Now())
		})
		wg.Go(func() {
			b := make([]byte, 4096)
			for {
				l, _, err := side.c.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				j := int(binary.BigEndian.Uint32(b))
				if j >= n || !bytes.Equal(b[:l], numberedPayload(j)) {
					t.Errorf("invented: %x", b[:l])
					return
				}
				got[i][j]++
			}
		})
	}
	wg.Wait()
	for i := range got {
		arrived := 0
		for _, copies := range got[i] {
			require.LessOrEqual(t, copies, 2)
			arrived += min(copies, 1)
		}
		require.Greater(t, arrived, n/5) // a reader that gets no processor for a while loses more than the network
	}
	require.Positive(t, f.lost.Load())
	require.Positive(t, p.a.Stats().ReceivedUD)
}

// readUntil reads until what is wanted has come.
func readUntil(c *PacketConn, want string) error {
	for b := make([]byte, 100); ; {
		n, _, err := c.ReadFrom(b)
		if err != nil || string(b[:n]) == want {
			return err
		}
	}
}

// blockedFor is how many datagrams, 20 ms apart, go over UDP where queue pairs do not reach each other: none is tried again.
const blockedFor = 2 * int((resolution.RefreshAfter+resolution.AnswerTime)/(20*time.Millisecond))

// Queue pairs stop reaching each other: soon everything goes over UDP, and when they do again, by queue pair.
func TestPacketBlockedPath(t *testing.T) {
	leak.Check(t)
	var f faults
	p := faultyPair(t, &f)
	p.resolve(t)
	f.loss.Store(1000)
	begun, last := time.Now(), uint64(0)
	for still := 0; still < blockedFor; still++ { // until nothing goes by queue pair any more
		require.Less(t, time.Since(begun), patience)
		p.send(t, p.a, p.toB, "into the dark")
		p.send(t, p.b, p.toA, "and back")
		time.Sleep(20 * time.Millisecond)
		if n := p.a.Stats().SentUD + p.b.Stats().SentUD; n != last {
			last, still = n, 0
		}
	}
	for i, c := range []*PacketConn{p.a, p.b} { // until what was said before is read
		peer, to := []*PacketConn{p.b, p.a}[i], []netip.AddrPort{p.toA, p.toB}[i]
		for try := 0; ; try++ {
			require.Less(t, try, 30, "nothing arrives")
			last := fmt.Sprint("the last of it, ", try)
			p.send(t, peer, to, last)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			if readUntil(c, last) == nil {
				break
			}
		}
	}
	before := p.a.Stats()
	for range 20 {
		p.exchange(t, "over UDP")
	}
	require.Equal(t, before.SentUD, p.a.Stats().SentUD)
	f.loss.Store(0)
	p.resolve(t)
}
