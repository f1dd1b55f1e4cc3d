package interop

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
)

// udaddy is our end of the program's private protocol (librdmacm/examples/udaddy.c): the client resolves the server's
// queue pair and sends messages whose immediate is the number of its own queue pair; the server answers with as many.
type udaddy struct {
	e  *endpoint
	qp verbs.QP
	mr verbs.MR
	ah verbs.AH
}

const (
	udaddySize  = 100
	udaddyCount = 10
)

func newUDAddy(e *endpoint) *udaddy {
	u := &udaddy{e: e, mr: e.memory((udaddyCount + 1) * (grhSize + udaddySize)), qp: e.qp(verbs.QPTUD)}
	for i := range u.message() {
		u.message()[i] = byte(i*3 + 1)
	}
	e.do(func() error {
		err := verbs.StartUD(u.qp, cm.UDQKey, 0x123)
		for i := 0; i < udaddyCount && err == nil; i++ {
			err = u.qp.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: sge(u.mr, u.slot(i), grhSize+udaddySize)})
		}
		return err
	})
	return u
}

func (u *udaddy) slot(i int) int { return (i + 1) * (grhSize + udaddySize) }

// message returns what we send.
func (u *udaddy) message() []byte { return u.mr.Bytes()[:udaddySize] }

// received returns a received message with what precedes it.
func (u *udaddy) received(i int) (grh, message []byte) {
	b := u.mr.Bytes()[u.slot(i):]
	return b[:grhSize], b[grhSize:][:udaddySize]
}

func (u *udaddy) send(to verbs.AHAttr, qpn, qkey uint32) {
	u.e.do(func() (err error) {
		if u.ah, err = u.e.pd.CreateAH(to); err != nil {
			return err
		}
		u.e.closers = append(u.e.closers, u.ah.Close)
		for i := 0; i < udaddyCount && err == nil; i++ {
			err = u.qp.PostSend(&verbs.SendWR{
				WRID: sendID, Opcode: verbs.WRSendWithImm, Flags: verbs.SendSignaled, SGList: sge(u.mr, 0, udaddySize),
				ImmData: u.qp.Num(), AH: u.ah, RemoteQPN: qpn, RemoteQKey: qkey,
			})
		}
		return err
	})
}

// await waits for the given number of send completions and for all receive completions, and returns the last of the
// latter.
func (u *udaddy) await(sends int) (last verbs.WC) {
	t := u.e.t
	t.Helper()
	for range sends + udaddyCount {
		wc := u.e.good()
		if wc.WRID == sendID {
			sends--
			continue
		}
		last = wc
		require.EqualValues(t, grhSize+udaddySize, wc.ByteLen)
		require.Equal(t, verbs.WCGRH|verbs.WCWithImm, wc.Flags)
		require.Equal(t, wc.SrcQP, wc.ImmData, "the immediate is the sender's queue pair")
	}
	require.Zero(t, sends)
	return last
}

func TestUDAddy(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for _, path := range l.paths() {
			t.Run(path.name+" program connects", func(t *testing.T) {
				e := l.open(t, path.our)
				m := e.manager()
				u := newUDAddy(e)
				ln, err := m.ListenUD(netip.AddrPortFrom(path.our, udaddyPort), cm.ListenConfig{})
				require.NoError(t, err)
				defer func() { require.NoError(t, ln.Close()) }()
				client := l.start(t, "udaddy", "-s", path.our.String())
				r, err := ln.Accept(patience(t, time.Minute))
				require.NoError(t, err)
				require.Equal(t, path.peer, r.Remote.Addr())
				require.NoError(t, r.Accept(cm.UDParams{QPN: u.qp.Num()}))
				last := u.await(0)
				u.send(r.AH(), last.SrcQP, cm.UDQKey)
				ended(t, client)
				require.Contains(t, client.Output(), "return status 0")
			})
			t.Run(path.name+" program serves", func(t *testing.T) {
				e := l.open(t, path.our)
				m := e.manager()
				u := newUDAddy(e)
				server := l.start(t, "udaddy", "-b", path.peer.String())
				info := e.resolve(m, netip.AddrPortFrom(path.peer, udaddyPort))
				require.EqualValues(t, cm.UDQKey, info.QKey)
				u.send(info.AH, info.QPN, info.QKey)
				u.await(udaddyCount)
				// It answers from its receive buffer, in which 40 bytes precede our message.
				for i := range udaddyCount {
					_, got := u.received(i)
					require.True(t, bytes.Equal(u.message()[:udaddySize-grhSize], got[grhSize:]), "answer %d", i)
				}
				ended(t, server)
				require.Contains(t, server.Output(), "return status 0")
			})
		}
	})
}

// resolve resolves a datagram service in the guest, which may not be there yet.
func (e *endpoint) resolve(m *cm.Manager, to netip.AddrPort) cm.UDInfo {
	t := e.t
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		info, err := m.ResolveUD(patience(t, time.Minute), cm.ResolveParams{Remote: to})
		var refused *cm.SIDRError
		if errors.As(err, &refused) && time.Now().Before(deadline) {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		require.NoError(t, err)
		return info
	}
}
