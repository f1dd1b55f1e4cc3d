package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// rping is our end of the program's private protocol (librdmacm/examples/rping.c
// of rdma-core) on a connected queue pair:
//
//	client                            server
//	SEND where the ping is      ──►   READs it
//	                            ◄──   SEND go ahead
//	SEND where the pong goes    ──►   WRITEs the ping there
//	                            ◄──   SEND go ahead
//
// "Where" is an address (8 bytes), a key (4) and a size (4), big endian. The content of the other messages has no
// meaning.
type rping struct {
	e    *endpoint
	qp   verbs.QP
	mr   verbs.MR
	size int

	early [][]byte // messages that arrived before the completion of our send
}

// Parts of the memory: received messages, the message to send, and the two
// buffers.
const (
	rpingMessage = 16
	rpingRecvs   = 4
	rpingSend    = rpingRecvs * rpingMessage
	rpingPing    = 4096
	rpingPong    = rpingPing + 1<<16
	rpingMemory  = rpingPong + 1<<16
)

// newRping makes the queue pair and posts its receives. The queue pair belongs to the test until it is connected.
func newRping(e *endpoint, size int) *rping {
	r := &rping{e: e, size: size, mr: e.memory(rpingMemory), qp: e.qp(verbs.QPTRC)}
	e.do(func() error {
		if err := verbs.Init(r.qp, rights); err != nil {
			return err
		}
		for slot := range rpingRecvs {
			if err := r.postRecv(slot); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

func (r *rping) postRecv(slot int) error {
	return r.qp.PostRecv(&verbs.RecvWR{WRID: uint64(slot), SGList: sge(r.mr, slot*rpingMessage, rpingMessage)})
}

// post posts one work request and waits for its completion.
func (r *rping) post(wr verbs.SendWR) {
	wr.WRID, wr.Flags = sendID, verbs.SendSignaled
	r.e.do(func() error { return r.qp.PostSend(&wr) })
	for {
		message, ok := r.next()
		require.True(r.e.t, ok, "end of the connection")
		if message == nil {
			return
		}
		r.early = append(r.early, message)
	}
}

// message waits for a message. There is none at the end of the connection.
func (r *rping) message() ([]byte, bool) {
	if len(r.early) > 0 {
		m := r.early[0]
		r.early = r.early[1:]
		return m, true
	}
	m, ok := r.next()
	if ok {
		require.NotNil(r.e.t, m, "completion of nothing")
	}
	return m, ok
}

// next waits for a completion: of a send, or of a receive, whose message it copies before it posts the receive again.
func (r *rping) next() (message []byte, ok bool) {
	t := r.e.t
	wc := r.e.next()
	if wc.Status == verbs.WCWRFlushErr {
		return nil, false
	}
	require.Equal(t, verbs.WCSuccess, wc.Status)
	if wc.WRID == sendID {
		return nil, true
	}
	require.EqualValues(t, rpingMessage, wc.ByteLen)
	slot := int(wc.WRID)
	message = bytes.Clone(r.mr.Bytes()[slot*rpingMessage:][:rpingMessage])
	r.e.do(func() error { return r.postRecv(slot) })
	return message, true
}

func (r *rping) goAhead() verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.WRSend, SGList: sge(r.mr, rpingSend, rpingMessage)}
}

// where returns a SEND of the place of a buffer.
func (r *rping) where(at int) verbs.SendWR {
	b := r.mr.Bytes()[rpingSend:][:rpingMessage]
	binary.BigEndian.PutUint64(b, r.mr.Addr()+uint64(at))
	binary.BigEndian.PutUint32(b[8:], r.mr.RKey())
	binary.BigEndian.PutUint32(b[12:], uint32(r.size))
	return r.goAhead()
}

// at returns a READ or WRITE at the place in a message, of n bytes, or of its size if n is 0.
func (r *rping) at(message []byte, op verbs.WROpcode, n int) verbs.SendWR {
	size := int(binary.BigEndian.Uint32(message[12:]))
	if n == 0 {
		n = size
	}
	require.LessOrEqual(r.e.t, n, min(size, rpingPong-rpingPing))
	return verbs.SendWR{
		Opcode: op, SGList: sge(r.mr, rpingPing, n),
		RemoteAddr: binary.BigEndian.Uint64(message), RKey: binary.BigEndian.Uint32(message[8:]),
	}
}

// serve serves until the client ends, and returns the number of pings.
func (r *rping) serve() int {
	t := r.e.t
	for n := 0; ; n++ {
		source, ok := r.message()
		if !ok {
			return n
		}
		r.post(r.at(source, verbs.WRRDMARead, 0))
		ping, _, found := bytes.Cut(r.mr.Bytes()[rpingPing:rpingPong], []byte{0})
		require.True(t, found)
		require.True(t, bytes.HasPrefix(ping, fmt.Appendf(nil, "rdma-ping-%d: ", n)), "%.40q", ping)
		r.post(r.goAhead())
		sink, ok := r.message()
		require.True(t, ok)
		r.post(r.at(sink, verbs.WRRDMAWrite, len(ping)+1))
		r.post(r.goAhead())
	}
}

// ping plays the client and checks what comes back.
func (r *rping) ping(count int) {
	t := r.e.t
	ask := func(at int) {
		r.post(r.where(at))
		_, ok := r.message()
		require.True(t, ok)
	}
	for n := range count {
		ping, pong := r.mr.Bytes()[rpingPing:][:r.size], r.mr.Bytes()[rpingPong:][:r.size]
		clear(pong)
		for i := copy(ping, fmt.Sprintf("rdma-ping-%d: ", n)); i < r.size; i++ {
			ping[i] = 'A' + byte((n+i)%58)
		}
		ping[r.size-1] = 0
		ask(rpingPing)
		ask(rpingPong)
		require.True(t, bytes.Equal(ping, pong), "ping %d", n)
	}
}
