package shm

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/verbs"
)

// rawCall sends bytes and fds to a device as a program of its own would, and
// returns the answer.
func rawCall(t *testing.T, d *Device, dir string, msg []byte, fds ...int) (message, error) {
	path := filepath.Join(dir, nameOf(d.cfg.GatewayID))
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if len(msg) > 0 {
		_, _, err = c.WriteMsgUnix(msg, oob, nil)
		require.NoError(t, err)
	} else {
		require.NoError(t, c.CloseWrite())
	}
	m, got, err := receiveMessage(c)
	fdpass.CloseFDs(got)
	return m, err
}

// hostileHello is a correct HELLO with its fds, to be spoiled.
type hostileHello struct {
	m          message
	size       uint64
	memfd, evt int
}

func newHello(t *testing.T, p *Peer) *hostileHello {
	h := &hostileHello{size: newLayout(1).arena + 1<<20}
	h.m = message{kind: typeHello, vectors: 1, size: h.size, gateway: newID(), key: p.Key()}
	var err error
	h.memfd, err = newMemfd(h.size)
	require.NoError(t, err)
	h.evt, err = newEventfd()
	require.NoError(t, err)
	t.Cleanup(func() { fdpass.CloseFDs([]int{h.memfd, h.evt}) })
	return h
}

func rawMemfd(t *testing.T, size int64, seals int, flags int) int {
	fd, err := unix.MemfdCreate("hostile", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC|flags)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	if seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
	}
	return fd
}

// Whatever a caller sends, it gets a refusal or a hang-up, and the offer stays good.
func TestHostileHello(t *testing.T) {
	d, dir := listening(t)
	p := offer(t, d)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	size := int64(newLayout(1).arena + 1<<20)
	require.NoError(t, file.Truncate(size))
	const all = sizeSeals
	for name, spoil := range map[string]func(h *hostileHello) ([]byte, []int){
		"nothing":   func(*hostileHello) ([]byte, []int) { return nil, nil },
		"one byte":  func(*hostileHello) ([]byte, []int) { return []byte("S"), nil },
		"no fds":    func(h *hostileHello) ([]byte, []int) { return h.m.encode(), nil },
		"one fd":    func(h *hostileHello) ([]byte, []int) { return h.m.encode(), []int{h.memfd} },
		"three fds": func(h *hostileHello) ([]byte, []int) { return h.m.encode(), []int{h.memfd, h.evt, h.evt} },
		"swapped":   func(h *hostileHello) ([]byte, []int) { return h.m.encode(), []int{h.evt, h.memfd} },
		"many fds": func(h *hostileHello) ([]byte, []int) {
			fds := make([]int, 200)
			for i := range fds {
				fds[i] = h.evt
			}
			return h.m.encode(), fds
		},
		"longer": func(h *hostileHello) ([]byte, []int) { return append(h.m.encode(), 0), []int{h.memfd, h.evt} },
		"unsealed": func(h *hostileHello) ([]byte, []int) {
			return h.m.encode(), []int{rawMemfd(t, size, 0, 0), h.evt}
		},
		"can shrink": func(h *hostileHello) ([]byte, []int) {
			return h.m.encode(), []int{rawMemfd(t, size, unix.F_SEAL_GROW|unix.F_SEAL_SEAL, 0), h.evt}
		},
		"not final": func(h *hostileHello) ([]byte, []int) {
			return h.m.encode(), []int{rawMemfd(t, size, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK, 0), h.evt}
		},
		"read only": func(h *hostileHello) ([]byte, []int) {
			return h.m.encode(), []int{rawMemfd(t, size, all|unix.F_SEAL_WRITE, 0), h.evt}
		},
		"smaller than said": func(h *hostileHello) ([]byte, []int) {
			return h.m.encode(), []int{rawMemfd(t, size-pageSize, all, 0), h.evt}
		},
		"no arena": func(h *hostileHello) ([]byte, []int) {
			h.m.size = newLayout(1).arena
			return h.m.encode(), []int{rawMemfd(t, int64(h.m.size), all, 0), h.evt}
		},
		"odd size": func(h *hostileHello) ([]byte, []int) {
			h.m.size++
			return h.m.encode(), []int{rawMemfd(t, int64(h.m.size), all, 0), h.evt}
		},
		"too big": func(h *hostileHello) ([]byte, []int) {
			h.m.size = 1 << 40
			return h.m.encode(), []int{rawMemfd(t, 1<<40, all, 0), h.evt}
		},
		"negative": func(h *hostileHello) ([]byte, []int) {
			h.m.size = 1 << 63
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"a file": func(h *hostileHello) ([]byte, []int) { return h.m.encode(), []int{int(file.Fd()), h.evt} },
		"no vectors": func(h *hostileHello) ([]byte, []int) {
			h.m.vectors = 0
			return h.m.encode(), []int{h.memfd}
		},
		"65535 vectors": func(h *hostileHello) ([]byte, []int) {
			h.m.vectors = 65535
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"more vectors than memory": func(h *hostileHello) ([]byte, []int) {
			h.m.vectors = 64
			fds := []int{h.memfd}
			for range 64 {
				fds = append(fds, h.evt)
			}
			return h.m.encode(), append(fds[:0:0], fds...)
		},
		"no gateway": func(h *hostileHello) ([]byte, []int) {
			h.m.gateway = [16]byte{}
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"our gateway": func(h *hostileHello) ([]byte, []int) {
			h.m.gateway = d.cfg.GatewayID
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"welcome": func(h *hostileHello) ([]byte, []int) {
			h.m.kind = typeWelcome
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"wrong key": func(h *hostileHello) ([]byte, []int) {
			h.m.key[0]++
			return h.m.encode(), []int{h.memfd, h.evt}
		},
		"version": func(h *hostileHello) ([]byte, []int) {
			b := h.m.encode()
			b[4]++
			return b, []int{h.memfd, h.evt}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHello(t, p)
			if name == "more vectors than memory" {
				h.m.size = newLayout(1).arena + pageSize
			}
			msg, fds := spoil(h)
			m, err := rawCall(t, d, dir, msg, fds...)
			if err == nil {
				require.Equal(t, byte(typeRefuse), m.kind)
			}
			require.False(t, p.Connected())
		})
	}
	c := openDevice(t, dir)
	_, err = c.Attach(context.Background(), p.Name(), p.Key())
	require.NoError(t, err)
}

// A caller checks the answer as strictly.
func TestHostileWelcome(t *testing.T) {
	dir := t.TempDir()
	d := openDevice(t, dir)
	for name, reply := range map[string]func(c *net.UnixConn, m message){
		"hang-up":     func(*net.UnixConn, message) {},
		"garbage":     func(c *net.UnixConn, _ message) { _, _ = c.Write([]byte("what?")) },
		"without fds": func(c *net.UnixConn, m message) { _ = sendMessage(c, m) },
		"hello back":  func(c *net.UnixConn, m message) { m.kind = typeHello; _ = sendMessage(c, m, 0, 0) },
		"stdin":       func(c *net.UnixConn, m message) { _ = sendMessage(c, m, 0, 0) },
		"other gateway": func(c *net.UnixConn, m message) {
			m.gateway = newID()
			_ = sendMessage(c, m, 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := newID()
			path := filepath.Join(dir, nameOf(id))
			ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			require.NoError(t, err)
			defer ln.Close()
			go func() {
				c, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				defer c.Close()
				_, fds, _ := receiveMessage(c)
				fdpass.CloseFDs(fds)
				reply(c, message{kind: typeWelcome, vectors: 1, size: newLayout(1).arena + 1<<20, gateway: id})
			}()
			_, err = d.Attach(context.Background(), nameOf(id), newID())
			require.Error(t, err)
			require.Empty(t, d.Peers())
		})
	}
}

// hostilePair is a connected queue pair of A and the view B has of A's memory.
type hostilePair struct {
	pa, pb *Peer
	qa, qb *qp
	da, db verbs.Driver
	cqa    verbs.CQ
}

func newHostilePair(t testing.TB) *hostilePair {
	a, b, pa, pb := met(t)
	h := &hostilePair{pa: pa, pb: pb, da: drive(t, a, 0), db: drive(t, b, 0)}
	make1 := func(d *Device, p *Peer) (*qp, verbs.CQ) {
		cq, err := d.CreateCQ(verbs.CQAttr{Depth: 256})
		require.NoError(t, err)
		q, err := p.PD().CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, SQSigAll: true,
			Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxRecvSGE: 1, MaxSendSGE: 1, MaxInline: 64},
		})
		require.NoError(t, err)
		require.NoError(t, verbs.Init(q, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
		return q.(*qp), cq
	}
	h.qa, h.cqa = make1(a, pa)
	h.qb, _ = make1(b, pb)
	require.NoError(t, verbs.Connect(h.qa, verbs.ConnectAttr(h.qb.num)))
	require.NoError(t, verbs.Connect(h.qb, verbs.ConnectAttr(h.qa.num)))
	h.turn()
	t.Cleanup(func() { _ = h.qa.Close(); _ = h.qb.Close() })
	return h
}

func (h *hostilePair) turn() {
	for range 3 {
		h.da.Progress(time.Now())
		h.da.Flush()
		h.db.Progress(time.Now())
		h.db.Flush()
	}
}

// word is a word of A's queue pair block as B sees it.
func (h *hostilePair) blk(off uint64) uint64 { return h.qa.blk.off + off }

// Indexes and entries no honest peer writes end the peer, and only it.
func TestHostileRing(t *testing.T) {
	for name, spoil := range map[string]func(h *hostilePair){
		"too many entries": func(h *hostilePair) { h.pb.rem.word(h.blk(blkProd)).Store(1000) },
		"fewer entries":    func(h *hostilePair) { h.pb.rem.word(h.blk(blkProd)).Store(^uint64(0)) },
		"operation": func(h *hostilePair) {
			h.pb.rem.word(h.blk(blkRing)).Store(77)
			h.pb.rem.word(h.blk(blkProd)).Store(1)
		},
		"flags": func(h *hostilePair) {
			h.pb.rem.word(h.blk(blkRing)).Store(entryWriteImm | entryImm)
			h.pb.rem.word(h.blk(blkProd)).Store(1)
		},
		"consumed too much": func(h *hostilePair) {
			h.pb.own.word(h.qb.blk.off + blkCons).Store(12345)
			h.pb.own.word(h.qb.blk.off + blkPosted).Store(1 << 40)
			for range 65 { // more than the ring has room for
				_ = h.qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm})
				h.cqa.Poll(make([]verbs.WC, 1))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostilePair(t)
			require.NoError(t, h.qa.PostRecv(&verbs.RecvWR{}))
			spoil(h)
			h.qa.vec.schedule(h.qa)
			h.turn()
			require.ErrorIs(t, h.pa.Err(), ErrViolation)
			h.turn()
			require.Equal(t, verbs.QPSErr, h.qa.State())
			require.Equal(t, uint64(1), h.pa.dev.Stats().Violations)
		})
	}
}

// FuzzRing lets the fuzzer write the block of a queue pair.
func FuzzRing(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0}, []byte{64, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 255, 255, 255, 255, 255, 255, 255, 255}, []byte{})
	f.Add([]byte{64, 2, 12, 0, 0, 0, 0, 0, 0}, []byte{0, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h := newHostilePair(t)
		for _, b := range [][]byte{first, second} {
			for ; len(b) >= 9; b = b[9:] {
				v := uint64(0)
				for i, x := range b[1:9] {
					v |= uint64(x) << (8 * i)
				}
				h.pb.rem.word(h.blk(uint64(b[0]) * 8)).Store(v)
			}
			_ = h.qa.PostRecv(&verbs.RecvWR{})
			h.qa.vec.schedule(h.qa)
			h.turn()
		}
	})
}

// FuzzMessage: what parses is what it was made from; nothing panics.
func FuzzMessage(f *testing.F) {
	m := message{kind: typeHello, vectors: 2, size: 1 << 20, gateway: [16]byte{1}, key: [16]byte{2}}
	f.Add(m.encode())
	f.Add(m.encode()[:20])
	f.Add(message{kind: typeRefuse, code: refuseKey}.encode())
	f.Add([]byte("SMSH\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, _, ok := golden.RoundTrip(t, b, parseMessage, message.encode); ok {
			_ = refusal(m.code)
		}
	})
}

func TestTruncatedMessage(t *testing.T) {
	full := message{kind: typeWelcome, vectors: 1, size: 1 << 20, gateway: [16]byte{1}}.encode()
	require.Len(t, full, messageSize)
	for n := range full {
		_, err := parseMessage(full[:n])
		require.ErrorIs(t, err, ErrMessage)
	}
}

func TestRefusalCodes(t *testing.T) {
	for code, want := range refusals {
		require.Equal(t, code, refuseCode(want))
		require.ErrorIs(t, refusal(code), want)
	}
	require.ErrorIs(t, refusal(200), ErrRefused)
	require.Equal(t, byte(refuseOther), refuseCode(os.ErrClosed))
}
