package kernel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// recordVariable names the file that the tests of the kernel write what it says to.
const recordVariable = "SMCGW_RDMACM_RECORD"

// removeVariable names the rxe device that TestRemovedFromKernel may remove, and its network device.
const removeVariable = "SMCGW_RDMACM_REMOVE"

// recorder writes down commands and answers.
type recorder struct {
	file

	mu  sync.Mutex
	out strings.Builder
}

func (r *recorder) Call(c rdmacm.Command, answer []byte) error {
	err := r.file.Call(c, answer)
	r.note(c, answer, err)
	return err
}

func (r *recorder) Next(ctx context.Context, answer []byte) error {
	err := r.file.Next(ctx, answer)
	r.note(rdmacm.GetEvent{}, answer, err)
	return err
}

func (r *recorder) note(c rdmacm.Command, answer []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		fmt.Fprintf(&r.out, "%v %x error %v\n", c.Number(), rdmacm.Encode(c, 0), err)
		return
	}
	fmt.Fprintf(&r.out, "%v %x answer %s\n", c.Number(), rdmacm.Encode(c, 0), hex.EncodeToString(answer))
}

// hostDevice is an adapter with all addresses of the host, and queue pairs that are numbers.
type hostDevice struct{ gids []verbs.GIDEntry }

func newHostDevice(t *testing.T) *hostDevice {
	t.Helper()
	d := &hostDevice{}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		ip, err := netip.ParsePrefix(a.String())
		require.NoError(t, err)
		if !ip.Addr().IsLoopback() {
			d.gids = append(d.gids, verbs.GIDEntry{GID: verbs.GIDOf(ip.Addr()), Type: verbs.GIDTypeRoCEv2})
		}
	}
	return d
}

func (*hostDevice) Attr() verbs.DeviceAttr { return verbs.DeviceAttr{MaxRDAtomic: 16} }
func (d *hostDevice) Port() verbs.PortAttr {
	return verbs.PortAttr{GIDs: d.gids, ActiveMTU: verbs.MTU1024, LinkLayer: verbs.LinkLayerEthernet}
}

// numberedQP is a queue pair of which the kernel knows the number.
type numberedQP struct {
	verbs.QP

	num   uint32
	typ   verbs.QPType
	fails error // of Modify to RTR

	mu    sync.Mutex
	state verbs.QPState
	attr  verbs.QPAttr
}

func newQP(num uint32) *numberedQP { return &numberedQP{num: num, typ: verbs.QPTRC} }

func (q *numberedQP) Num() uint32        { return q.num }
func (q *numberedQP) Type() verbs.QPType { return q.typ }

func (q *numberedQP) State() verbs.QPState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

func (q *numberedQP) Query() verbs.QPAttr {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr
}

func (q *numberedQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	to, err := verbs.CheckTransition(q.typ, q.state, attr, mask)
	if err == nil {
		err = errors.Join(verbs.CheckAttr(attr, mask), verbs.CheckPartition(attr, mask, 1))
	}
	if to == verbs.QPSRTR && q.fails != nil {
		err = q.fails
	}
	if err != nil {
		return err
	}
	q.state = to
	q.attr.Apply(attr, mask)
	return nil
}

// withKernel runs a test with the kernel's manager, which needs an RDMA device on one of the host's addresses.
func withKernel(t *testing.T) (*Manager, *hostDevice) {
	t.Helper()
	f, err := rdmacm.Open()
	if err != nil {
		testnet.Lack(t, "kernel", err)
	}
	var k file = f
	if name := os.Getenv(recordVariable); name != "" {
		r := &recorder{file: f}
		t.Cleanup(func() { require.NoError(t, os.WriteFile(name+"."+t.Name(), []byte(r.out.String()), 0o600)) })
		k = r
	}
	dev := newHostDevice(t)
	m := newManager(dev, k)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m, dev
}

// addrsOf are one address of each version that the kernel has a path from.
func addrsOf(t *testing.T, dev *hostDevice) (all []netip.Addr) {
	t.Helper()
	var have4, have6 bool
	for _, g := range dev.gids {
		a := g.GID.Addr()
		if a.IsLinkLocalUnicast() || a.Is4() && have4 || a.Is6() && have6 {
			continue
		}
		have4, have6 = have4 || a.Is4(), have6 || a.Is6()
		all = append(all, a)
	}
	require.NotEmpty(t, all)
	return all
}

// TestKernelConnection makes connections by the kernel's manager between two queue pairs that are numbers: the kernel
// asks nothing else of them.
func TestKernelConnection(t *testing.T) {
	m, dev := withKernel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, addr := range addrsOf(t, dev) {
		l, err := m.Listen(netip.AddrPortFrom(addr, 7471), cm.ListenConfig{Backlog: 4})
		require.NoError(t, err)
		require.Equal(t, netip.AddrPortFrom(addr, 7471), l.Addr())
		server, client := newQP(0x1000+uint32(i)), newQP(0x2000+uint32(i))
		accepted := make(chan cm.Conn, 1)
		go func() {
			c, err := acceptOne(ctx, l, server)
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		c, err := m.Dial(ctx, cm.DialParams{
			QPParams: cm.QPParams{QP: client, Access: verbs.AccessRemoteWrite, RetryCount: 6}, Remote: l.Addr(), PrivateData: []byte("hello"),
		})
		require.NoError(t, err)
		s := <-accepted
		require.NotNil(t, s)
		checkPair(t, c, s, client, server, addr)

		require.NoError(t, c.Disconnect(ctx))
		require.ErrorIs(t, c.Err(), cm.ErrClosed)
		<-s.Done()
		require.ErrorIs(t, s.Err(), cm.ErrDisconnected)
		require.NoError(t, s.Disconnect(ctx))
		require.Equal(t, verbs.QPSErr, client.State())
		require.NoError(t, l.Close())
	}
}

func acceptOne(ctx context.Context, l cm.Listener, qp *numberedQP) (cm.Conn, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return r.Accept(ctx, cm.AcceptParams{QPParams: cm.QPParams{QP: qp, RNRRetry: 5}, PrivateData: []byte("welcome")})
}

func checkPair(t *testing.T, c, s cm.Conn, client, server *numberedQP, addr netip.Addr) {
	t.Helper()
	require.Equal(t, "hello", string(s.PrivateData()[:5]))
	require.Equal(t, "welcome", string(c.PrivateData()[:7]))
	require.Equal(t, c.LocalAddr(), s.RemoteAddr())
	require.Equal(t, c.RemoteAddr(), s.LocalAddr())
	require.Equal(t, addr, c.RemoteAddr().Addr())
	for _, q := range []*numberedQP{client, server} {
		a := q.Query()
		require.Equal(t, verbs.QPSRTS, q.State())
		require.Equal(t, verbs.GIDOf(addr), a.AH.DGID)
		require.NotZero(t, a.PathMTU.Bytes())
		require.EqualValues(t, 12, a.MinRNRTimer)
		require.NotZero(t, a.Timeout)
		require.NotZero(t, a.AH.HopLimit)
	}
	require.Equal(t, server.num, client.Query().DestQPNum)
	require.Equal(t, client.num, server.Query().DestQPNum)
	require.Equal(t, client.Query().SQPSN, server.Query().RQPSN)
	require.Equal(t, client.Query().RQPSN, server.Query().SQPSN)
	require.EqualValues(t, 6, server.Query().RetryCnt)
	require.EqualValues(t, 5, client.Query().RNRRetry)
}

// TestKernelRefusals: what there is to refuse, and what is said.
func TestKernelRefusals(t *testing.T) {
	m, dev := withKernel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := addrsOf(t, dev)[0]
	dial := func(port uint16) error {
		_, err := m.Dial(ctx, cm.DialParams{QPParams: cm.QPParams{QP: newQP(77)}, Remote: netip.AddrPortFrom(addr, port)})
		return err
	}
	err := dial(7472)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "no listener")
	var refused *cm.RejectError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, cm.RejectInvalidServiceID, refused.Reason)

	l, err := m.Listen(netip.AddrPort{}, cm.ListenConfig{})
	require.NoError(t, err)
	require.NotZero(t, l.Addr().Port())
	_, err = m.Listen(l.Addr(), cm.ListenConfig{})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Reject(cm.RejectConsumerDefined, []byte("no"))
		}
		if err != nil {
			t.Error(err)
		}
	}()
	err = dial(l.Addr().Port())
	require.ErrorAs(t, err, &refused)
	require.Equal(t, cm.RejectConsumerDefined, refused.Reason)
	require.Equal(t, "no", string(refused.PrivateData[:2]))

	// A request that is not answered is refused by the end of the listener.
	done := make(chan error, 1)
	go func() { done <- dial(l.Addr().Port()) }()
	require.Eventually(t, func() bool { return len(l.(*listener).requests) == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-done, syscall.ECONNREFUSED)

	_, err = m.Listen(netip.MustParseAddrPort("192.0.2.1:1"), cm.ListenConfig{})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	_, err = m.Dial(ctx, cm.DialParams{QPParams: cm.QPParams{QP: newQP(77)}, Remote: netip.MustParseAddrPort("127.0.0.1:1")})
	require.Error(t, err)
	t.Log("no device:", err)
}

// TestKernelQueuePairFails: the peer of a queue pair that does not get to RTS hears of it.
func TestKernelQueuePairFails(t *testing.T) {
	m, dev := withKernel(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := m.Listen(netip.AddrPortFrom(addrsOf(t, dev)[0], 0), cm.ListenConfig{})
	require.NoError(t, err)
	broken := errors.New("queue pair is broken")
	for _, ofServer := range []bool{false, true} {
		server, client := newQP(5), newQP(6)
		if ofServer {
			server.fails = broken
		} else {
			client.fails = broken
		}
		answered := make(chan error, 1)
		go func() {
			_, err := acceptOne(ctx, l, server)
			answered <- err
		}()
		_, err = m.Dial(ctx, cm.DialParams{QPParams: cm.QPParams{QP: client}, Remote: l.Addr()})
		if ofServer {
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.ErrorIs(t, <-answered, broken)
		} else {
			require.ErrorIs(t, err, broken)
			require.ErrorIs(t, <-answered, syscall.ECONNREFUSED)
		}
	}
	require.NoError(t, l.Close())
}

// TestRemovedFromKernel removes the device of a guest, which is possible only when nothing of ours holds it.
func TestRemovedFromKernel(t *testing.T) {
	m, dev := withKernel(t)
	name, netdev, ok := strings.Cut(os.Getenv(removeVariable), " ")
	if !ok {
		testnet.Lack(t, "kernel", errors.New(removeVariable+" names no device"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr := addrsOf(t, dev)[0]
	everywhere, err := m.Listen(netip.AddrPort{}, cm.ListenConfig{})
	require.NoError(t, err)
	pair := func() (l cm.Listener, c, s cm.Conn) {
		l, err := m.Listen(netip.AddrPortFrom(addr, 0), cm.ListenConfig{})
		require.NoError(t, err)
		accepted := make(chan cm.Conn, 1)
		go func() {
			s, err := acceptOne(ctx, l, newQP(2))
			if err != nil {
				t.Error(err)
			}
			accepted <- s
		}()
		c, err = m.Dial(ctx, cm.DialParams{QPParams: cm.QPParams{QP: newQP(1)}, Remote: l.Addr()})
		require.NoError(t, err)
		s = <-accepted
		require.NotNil(t, s)
		return l, c, s
	}
	l, c, s := pair()
	out, err := exec.CommandContext(ctx, "rdma", "link", "delete", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, end := range []cm.Conn{c, s} {
		<-end.Done()
		// The kernel takes the identifiers one after the other: the end of one may come
		// before the removal of the other.
		if err := end.Err(); !errors.Is(err, cm.ErrDisconnected) {
			require.ErrorIs(t, err, rdmacm.ErrDeviceRemoved)
		}
		require.NoError(t, end.Disconnect(ctx))
	}
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, rdmacm.ErrDeviceRemoved)
	require.NoError(t, l.Close())

	out, err = exec.CommandContext(ctx, "rdma", "link", "add", name, "type", "rxe", "netdev", netdev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	l, c, s = pair()
	require.NoError(t, c.Disconnect(ctx))
	<-s.Done()
	require.NoError(t, errors.Join(l.Close(), everywhere.Close()))
}
