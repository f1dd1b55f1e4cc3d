package interop

import (
	"bytes"
	"encoding/binary"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs"
)

// perftestCase is one of the programs with what our side does against it.
type perftestCase struct {
	program string
	size, n int
	serve   func(p *perftest, size, n int) // the program is the client
	connect func(p *perftest, size, n int) // the program is the server
}

var perftestCases = []perftestCase{
	{"ib_send_bw", 65536, 300, takeSends, makeSends},
	{"ib_write_bw", 65536, 300, beWritten, makeWrites},
	{"ib_read_bw", 65536, 300, beWritten, makeReads},
	{"ib_atomic_bw", 8, 1000, takeAtomics, makeAtomics},
}

func TestPerftest(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for _, c := range perftestCases {
			for _, path := range l.paths() {
				n := max(scaled(c.n), 20)
				// They exchange the parameters over IPv4.
				args := []string{c.program, "-d", guest.Device, "-x", strconv.Itoa(path.gid), "-n", strconv.Itoa(n), "-F", "-m", "1024"}
				if c.size != 8 {
					args = append(args, "-s", strconv.Itoa(c.size))
				}
				open := func(t *testing.T, conn net.Conn, server bool) *perftest {
					p := &perftest{e: l.open(t, path.our), conn: conn, server: server}
					p.open(p.e.memory(perftestMemory))
					return p
				}
				t.Run(c.program+" "+path.name+" program connects", func(t *testing.T) {
					ln := l.listen(t, l.host.Addr4, perftestPort)
					client := l.start(t, append(args, l.host.Addr4.String())...)
					conn, err := ln.Accept()
					require.NoError(t, err)
					defer func() { _ = conn.Close() }()
					p := open(t, conn, true)
					c.serve(p, c.size, n)
					p.part()
					require.NoError(t, client.Wait(patience(t, time.Minute)))
				})
				t.Run(c.program+" "+path.name+" program serves", func(t *testing.T) {
					server := l.start(t, args...)
					p := open(t, l.dial(t, l.guest.Addr4, perftestPort), false)
					c.connect(p, c.size, n)
					p.part()
					require.NoError(t, server.Wait(patience(t, time.Minute)))
				})
			}
		}
	})
}

const (
	perftestMemory = 1 << 20
	perftestDepth  = 8 // work requests that we keep under way
)

// takeSends receives all messages. The program sends them from one buffer, so they are all alike.
func takeSends(p *perftest, size, n int) {
	t := p.e.t
	post := func(slot int) error {
		return p.qp.PostRecv(&verbs.RecvWR{WRID: uint64(slot), SGList: sge(p.mr, slot*size, size)})
	}
	p.e.do(func() error {
		for slot := range perftestDepth {
			if err := post(slot); err != nil {
				return err
			}
		}
		return nil
	})
	p.shake()
	var first []byte
	for range n {
		wc := p.e.good()
		require.EqualValues(t, size, wc.ByteLen)
		slot := int(wc.WRID)
		got := p.mr.Bytes()[slot*size:][:size]
		if first == nil {
			first = bytes.Clone(got)
		}
		require.True(t, bytes.Equal(first, got), "content")
		p.e.do(func() error { return post(slot) })
	}
}

// pump posts n work requests, a few at a time, and waits for all of them.
func (p *perftest) pump(n int, wr func(i int) verbs.SendWR, done func(i int)) {
	p.e.t.Helper()
	posted := 0
	for completed := range n {
		p.e.do(func() error {
			for ; posted < n && posted < completed+perftestDepth; posted++ {
				w := wr(posted)
				w.WRID, w.Flags = uint64(posted), verbs.SendSignaled
				if err := p.qp.PostSend(&w); err != nil {
					return err
				}
			}
			return nil
		})
		wc := p.e.good()
		require.EqualValues(p.e.t, completed, wc.WRID)
		if done != nil {
			done(completed)
		}
	}
}

func makeSends(p *perftest, size, n int) {
	p.shake()
	p.pump(n, func(int) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.WRSend, SGList: sge(p.mr, 0, size)}
	}, nil)
}

// beWritten waits while the program writes or reads our memory.
func beWritten(p *perftest, size, n int) {
	p.report(size, n)
	beyond := p.mr.Bytes()[2*size:]
	require.True(p.e.t, bytes.Equal(make([]byte, len(beyond)), beyond), "memory after what the program may use")
}

func makeWrites(p *perftest, size, n int) {
	p.pump(n, func(int) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: sge(p.mr, 0, size), RemoteAddr: p.peer.va, RKey: p.peer.rkey}
	}, nil)
	p.report(size, n)
}

// makeReads reads the program's buffer repeatedly; it does not change.
func makeReads(p *perftest, size, n int) {
	var first []byte
	slot := func(i int) int { return (i % perftestDepth) * size }
	p.pump(n, func(i int) verbs.SendWR {
		return verbs.SendWR{
			Opcode: verbs.WRRDMARead, SGList: sge(p.mr, slot(i), size), RemoteAddr: p.peer.va, RKey: p.peer.rkey,
		}
	}, func(i int) {
		got := p.mr.Bytes()[slot(i):][:size]
		if first == nil {
			first = bytes.Clone(got)
		}
		require.True(p.e.t, bytes.Equal(first, got), "content")
		clear(got)
	})
	p.report(size, n)
}

// takeAtomics lets the program add 1 as often as it likes to memory that begins as zero.
func takeAtomics(p *perftest, size, n int) {
	p.report(size, n)
	sum := uint64(0)
	for b := p.mr.Bytes(); len(b) > 0; b = b[8:] {
		sum += binary.NativeEndian.Uint64(b)
	}
	require.EqualValues(p.e.t, n, sum, "sum of all that was added")
}

// makeAtomics adds 3 repeatedly; each time the old value must come back.
func makeAtomics(p *perftest, size, n int) {
	const add = 3
	base := uint64(0)
	slot := func(i int) int { return (i % perftestDepth) * 8 }
	p.pump(n, func(i int) verbs.SendWR {
		return verbs.SendWR{
			Opcode: verbs.WRAtomicFetchAndAdd, SGList: sge(p.mr, slot(i), 8), RemoteAddr: p.peer.va, RKey: p.peer.rkey,
			CompareAdd: add,
		}
	}, func(i int) {
		old := binary.NativeEndian.Uint64(p.mr.Bytes()[slot(i):])
		if i == 0 {
			base = old
		}
		require.Equal(p.e.t, base+add*uint64(i), old)
	})
	p.report(size, n)
}
