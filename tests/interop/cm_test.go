package interop

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
	"github.com/smcgw/smcgw/verbs"
)

// Ports of the programs.
const (
	rpingPort   = 7174
	cmatosePort = 7471
)

// manager returns the communication manager of an endpoint, which it does not outlive.
func (e *endpoint) manager() *cm.Manager {
	e.t.Helper()
	m, err := cm.New(e.dev, cm.Config{Do: e.loop.Do})
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, m.Close()) })
	return m
}

// params returns the connection parameters that the programs use.
func (e *endpoint) params(qp verbs.QP) cm.QPParams {
	return cm.QPParams{QP: qp, Do: e.loop.Do, Access: rights, ResponderResources: 1, InitiatorDepth: 1}
}

// dialCM connects to a program in the guest, which may not listen yet.
func (e *endpoint) dialCM(m *cm.Manager, qp func() verbs.QP, to netip.AddrPort, p cm.QPParams) cm.Conn {
	t := e.t
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		p.QP = qp()
		conn, err := m.Dial(patience(t, time.Minute), cm.DialParams{QPParams: p, Remote: to})
		var rejected *cm.RejectError
		if errors.As(err, &rejected) && rejected.Reason == cm.RejectInvalidServiceID && time.Now().Before(deadline) {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		require.NoError(t, err)
		return conn
	}
}

// listenCM listens on a port at the endpoint's address.
func (e *endpoint) listenCM(m *cm.Manager, port uint16) cm.Listener {
	e.t.Helper()
	ln, err := m.Listen(netip.AddrPortFrom(e.addr, port), cm.ListenConfig{})
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, ln.Close()) })
	return ln
}

func (e *endpoint) accept(ln cm.Listener, qp verbs.QP) cm.Conn {
	t := e.t
	t.Helper()
	r, err := ln.Accept(patience(t, time.Minute))
	require.NoError(t, err)
	conn, err := r.Accept(patience(t, time.Minute), cm.AcceptParams{QPParams: e.params(qp)})
	require.NoError(t, err)
	return conn
}

// hangUp disconnects when the peer does, so that what is posted is flushed.
func (e *endpoint) hangUp(conn cm.Conn) {
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		select {
		case <-conn.Done():
			_ = conn.Disconnect(ctx)
		case <-ctx.Done():
		}
	})
	e.t.Cleanup(func() { cancel(); wg.Wait() })
}

// ended waits for the end of a program, which must succeed.
func ended(t *testing.T, p *remote.Process) {
	t.Helper()
	require.NoError(t, p.Wait(patience(t, time.Minute)))
}

func TestRping(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for _, path := range l.paths() {
			for _, c := range []struct{ size, n int }{{64, 3000}, {65535, 200}} {
				name := path.name + " " + strconv.Itoa(c.size)
				n := scaled(c.n)
				t.Run(name+" program connects", func(t *testing.T) {
					e := l.open(t, path.our)
					m := e.manager()
					ln := e.listenCM(m, rpingPort)
					client := l.start(t, "rping", "-c", "-V", "-a", path.our.String(), "-C", strconv.Itoa(n), "-S", strconv.Itoa(c.size))
					r := newRping(e, c.size)
					e.hangUp(e.accept(ln, r.qp))
					require.Equal(t, n, r.serve())
					ended(t, client)
				})
				t.Run(name+" program serves", func(t *testing.T) {
					e := l.open(t, path.our)
					m := e.manager()
					server := l.start(t, "rping", "-s", "-a", path.peer.String(), "-S", strconv.Itoa(c.size))
					var r *rping
					conn := e.dialCM(m, func() verbs.QP {
						r = newRping(e, c.size)
						return r.qp
					}, netip.AddrPortFrom(path.peer, rpingPort), e.params(nil))
					r.ping(n)
					require.NoError(t, conn.Disconnect(patience(t, time.Minute)))
					require.ErrorIs(t, conn.Err(), cm.ErrClosed)
					ended(t, server)
				})
			}
			t.Run(path.name+" many connections", func(t *testing.T) {
				l.start(t, "rping", "-s", "-P", "-S", "100", "-a", path.peer.String())
				for good, left := true, max(scaled(50), 10); good && left > 0; left-- {
					good = t.Run("one", func(t *testing.T) {
						e := l.open(t, path.our)
						m := e.manager()
						var r *rping
						conn := e.dialCM(m, func() verbs.QP {
							r = newRping(e, 100)
							return r.qp
						}, netip.AddrPortFrom(path.peer, rpingPort), e.params(nil))
						r.ping(3)
						require.NoError(t, conn.Disconnect(patience(t, time.Minute)))
					})
				}
			})
		}
	})
}

// TestRefused asks the kernel for a service without a listener, and has it ask us.
func TestRefused(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		path := l.paths()[0]
		e := l.open(t, path.our)
		m := e.manager()
		_, err := m.Dial(patience(t, time.Minute), cm.DialParams{
			QPParams: e.params(e.qp(verbs.QPTRC)), Remote: netip.AddrPortFrom(path.peer, 999),
		})
		var rejected *cm.RejectError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, cm.RejectInvalidServiceID, rejected.Reason)

		client := l.start(t, "rping", "-c", "-a", path.our.String(), "-C", "1")
		require.Error(t, client.Wait(patience(t, time.Minute)))
		require.Contains(t, client.Output(), "RDMA_CM_EVENT_REJECTED, error 8")
	})
}

// cmatose is our end of ucmatose (librdmacm/examples/cmatose.c): when all are
// connected the server sends a number of messages, the client as many replies,
// from the buffer it receives into. Then the server disconnects.
type cmatose struct {
	e       *endpoint
	qp      verbs.QP
	mr      verbs.MR
	size, n int
}

func newCmatose(e *endpoint, size, n int) *cmatose {
	c := &cmatose{e: e, size: size, n: n, mr: e.memory(size * (n + 1)), qp: e.qp(verbs.QPTRC)}
	for i := range c.mr.Bytes()[:size] {
		c.mr.Bytes()[i] = byte(i*11 + 5)
	}
	e.do(func() error {
		err := verbs.Init(c.qp, 0)
		for i := 0; i < n && err == nil; i++ {
			err = c.qp.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: sge(c.mr, size*(i+1), size)})
		}
		return err
	})
	return c
}

func (c *cmatose) send() {
	c.e.do(func() (err error) {
		for i := 0; i < c.n && err == nil; i++ {
			err = c.qp.PostSend(&verbs.SendWR{
				WRID: sendID, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: sge(c.mr, 0, c.size),
			})
		}
		return err
	})
}

// await waits for completions of sends and of receives.
func (c *cmatose) await(sends, receives int) {
	t := c.e.t
	t.Helper()
	for sends > 0 || receives > 0 {
		if wc := c.e.good(); wc.WRID == sendID {
			sends--
		} else {
			receives--
			require.EqualValues(t, c.size, wc.ByteLen)
		}
	}
	require.Zero(t, sends)
	require.Zero(t, receives)
}

func TestCmatose(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		const size, n = 3000, 20
		count := []string{"-C", strconv.Itoa(n), "-S", strconv.Itoa(size)}
		for _, path := range l.paths() {
			t.Run(path.name+" program connects", func(t *testing.T) {
				e := l.open(t, path.our)
				m := e.manager()
				ln := e.listenCM(m, cmatosePort)
				client := l.start(t, append([]string{"ucmatose", "-s", path.our.String()}, count...)...)
				c := newCmatose(e, size, n)
				conn := e.accept(ln, c.qp)
				c.send()
				c.await(n, n)
				for i := range n {
					require.True(t, bytes.Equal(c.mr.Bytes()[:size], c.mr.Bytes()[size*(i+1):][:size]), "reply %d", i)
				}
				require.NoError(t, conn.Disconnect(patience(t, time.Minute)))
				ended(t, client)
				require.Contains(t, client.Output(), "return status 0")
			})
			t.Run(path.name+" program serves", func(t *testing.T) {
				e := l.open(t, path.our)
				m := e.manager()
				server := l.start(t, append([]string{"ucmatose", "-b", path.peer.String()}, count...)...)
				var c *cmatose
				conn := e.dialCM(m, func() verbs.QP {
					c = newCmatose(e, size, n)
					return c.qp
				}, netip.AddrPortFrom(path.peer, cmatosePort), e.params(nil))
				c.await(0, n)
				c.send()
				c.await(n, 0)
				select {
				case <-conn.Done():
				case <-time.After(time.Minute):
					require.FailNow(t, "no disconnection")
				}
				require.ErrorIs(t, conn.Err(), cm.ErrDisconnected)
				ended(t, server)
				require.Contains(t, server.Output(), "return status 0")
			})
		}
	})
}
