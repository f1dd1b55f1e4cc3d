package shm

import (
	"testing"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// What a peer had sent before it hung up is received, in order and before anything is flushed: it may have been told
// that it arrived. Not so what came from a peer that was sent away.
func TestReceivedAfterHangUp(t *testing.T) {
	a, b := newSides(t)
	qa, qb := rc(a, b)
	for i := range 6 {
		b.NoError(qb.PostRecv(&verbs.RecvWR{WRID: uint64(i)}))
	}
	settle(a, b)
	copy(a.mr.Bytes(), "hello")
	for i := range 3 {
		wr := a.write(verbs.WRRDMAWriteWithImm, b, 0, 5)
		wr.ImmData, wr.RemoteAddr = uint32(i), wr.RemoteAddr+uint64(i*5)
		a.NoError(qa.PostSend(wr))
	}
	a.turn()
	a.NoError(a.p.Close())
	a.NoError(qa.Close())
	waitDown(t, b.p)
	for range 3 {
		b.turn()
	}
	b.Len(b.recv, 6)
	for _, wc := range b.recv[:3] {
		b.Equal(verbs.WCSuccess, wc.Status)
	}
	b.Equal([]uint32{0, 1, 2}, imms(b.recv[:3]))
	b.Equal("hellohellohello", string(b.mr.Bytes()[:15]))
	for _, wc := range b.recv[3:] {
		b.Equal(verbs.WCWRFlushErr, wc.Status)
	}
	b.Equal(verbs.QPSErr, qb.State())
}

// Datagrams are not promised to arrive, but one may say why its sender goes.
func TestDatagramsReceivedAfterHangUp(t *testing.T) {
	a, b := newSides(t)
	from, to := a.ud(), []*qp{b.ud(), b.ud()}
	for i := range 6 {
		b.post(to[i%2], 5000*i, 5)
	}
	settle(a, b)
	copy(a.mr.Bytes(), "hello")
	for i := range 4 {
		a.NoError(from.PostSend(a.datagram(to[i%2], 5)))
	}
	a.turn()
	a.NoError(a.p.Close())
	waitDown(t, b.p)
	for range 3 {
		b.turn()
	}
	b.Len(b.recv, 6)
	flushed := 0
	for _, wc := range b.recv {
		if wc.Status == verbs.WCWRFlushErr {
			flushed++
			continue
		}
		b.Equal(verbs.WCSuccess, wc.Status)
		b.Equal("hello", string(b.mr.Bytes()[wc.WRID+grhSize:][:5]))
	}
	b.Equal(2, flushed)
	for _, q := range to {
		b.Equal(verbs.QPSErr, q.State())
	}
}

func TestNothingReceivedFromWhoWasSentAway(t *testing.T) {
	a, b := newSides(t)
	qa, qb := rc(a, b)
	b.NoError(qb.PostRecv(&verbs.RecvWR{WRID: 1}))
	settle(a, b)
	a.NoError(qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm}))
	a.turn()
	b.NoError(b.p.Close())
	for range 3 {
		b.turn()
	}
	b.Equal([]verbs.WCStatus{verbs.WCWRFlushErr}, statuses(b.recv))
}

func waitDown(t *testing.T, p *Peer) {
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatal("hang-up not noticed")
	}
}
