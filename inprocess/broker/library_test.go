package broker

import (
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// serve runs a broker and returns it with the path of its socket.
func serve(t *testing.T, c Config) (*Broker, string) {
	at := filepath.Join(t.TempDir(), "s")
	l, err := Listen(at, 0o600)
	require.NoError(t, err)
	b := New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.Zero(t, b.Clients())
		require.Empty(t, b.leftovers)
	})
	return b, at
}

// library speaks for libsmcgw.so.
type library struct {
	t          *testing.T
	conn       *net.UnixConn
	slab       int
	desk, news int
	entries    uint64
}

func dial(t *testing.T, at string) *library {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
	require.NoError(t, err)
	l := &library{t: t, conn: c, slab: -1, desk: -1, news: -1, entries: 256}
	t.Cleanup(l.close)
	return l
}

// connect dials and says hello.
func connect(t *testing.T, at string) *library { return dial(t, at).hello(0) }

func (l *library) hello(run uint64) *library {
	if l.slab < 0 {
		l.slab = memory(l.t, int64(l.entries)*inprocess.EntrySize)
	}
	l.send(inprocess.Record{What: inprocess.Hello, ID: run, A: inprocess.Version, B: l.entries}, l.slab)
	r, fds := l.receive()
	require.Equal(l.t, inprocess.Welcome, r.What, "%+v", r)
	require.Len(l.t, fds, 2)
	l.desk, l.news = fds[0], fds[1]
	return l
}

func memory(t *testing.T, size int64) int {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, size))
	return fd
}

func (l *library) close() {
	_ = l.conn.Close()
	for _, fd := range []*int{&l.slab, &l.desk, &l.news} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

func (l *library) send(r inprocess.Record, fds ...int) {
	l.t.Helper()
	require.NoError(l.t, fdpass.SendFDs(l.conn, r.Append(nil), fds))
}

const patience = 10 * time.Second

func (l *library) receive() (inprocess.Record, []int) {
	l.t.Helper()
	_ = l.conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, inprocess.RecordSize+1)
	n, fds, cut, err := fdpass.Receive(l.conn, b)
	require.NoError(l.t, err)
	require.NoError(l.t, cut)
	r, err := inprocess.ParseRecord(b[:n])
	require.NoError(l.t, err)
	return r, fds
}

// ends waits until the broker has let the client go.
func (l *library) ends() {
	l.t.Helper()
	for l.reads() {
	}
}

// reads takes one record; false is the end.
func (l *library) reads() bool {
	l.t.Helper()
	_ = l.conn.SetReadDeadline(time.Now().Add(patience))
	_, fds, _, err := fdpass.Receive(l.conn, make([]byte, inprocess.RecordSize))
	fdpass.CloseFDs(fds)
	var timeout net.Error
	if asNet(err, &timeout) {
		require.False(l.t, timeout.Timeout(), "the client was not ended")
	}
	return err == nil
}

func (l *library) word(at int64) uint32 {
	var b [4]byte
	_, err := unix.Pread(l.news, b[:], at)
	require.NoError(l.t, err)
	return binary.NativeEndian.Uint32(b[:])
}

func (l *library) ask(tag uint32, c *net.TCPConn) {
	l.t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(l.t, err)
	require.NoError(l.t, raw.Control(func(fd uintptr) { l.send(inprocess.Record{What: inprocess.Ask, Tag: tag}, int(fd)) }))
}

func (l *library) denied(tag uint32, why inprocess.Why) {
	l.t.Helper()
	r, fds := l.receive()
	require.Empty(l.t, fds)
	require.Equal(l.t, inprocess.Record{What: inprocess.Deny, Tag: tag, Why: why}, r)
}

// granted is what an end gets.
type granted struct {
	inprocess.Record
	own, peer, desk int

	let func() // closes them
}

func (l *library) granted(tag uint32) granted {
	l.t.Helper()
	r, fds := l.receive()
	require.Equal(l.t, inprocess.Grant, r.What, "%+v", r)
	require.Equal(l.t, tag, r.Tag)
	require.Len(l.t, fds, 3)
	let := sync.OnceFunc(func() { fdpass.CloseFDs(fds) })
	l.t.Cleanup(let)
	return granted{r, fds[0], fds[1], fds[2], let}
}

// report writes what the library says of an entry.
func (l *library) report(tag uint32, r inprocess.Report) {
	b := make([]byte, inprocess.ReportSize)
	e := binary.NativeEndian
	e.PutUint32(b[inprocess.ReportState:], uint32(r.State))
	e.PutUint32(b[inprocess.ReportWhy:], uint32(r.Why))
	e.PutUint64(b[inprocess.ReportID:], r.ID)
	e.PutUint64(b[inprocess.ReportCookie:], r.Cookie)
	e.PutUint64(b[inprocess.ReportRxRing:], r.RxRing)
	e.PutUint64(b[inprocess.ReportTxRing:], r.TxRing)
	e.PutUint16(b[inprocess.ReportSide:], r.Side)
	_, err := unix.Pwrite(l.slab, b, int64(inprocess.Index(tag))*inprocess.EntrySize)
	require.NoError(l.t, err)
}

// connection makes a TCP connection on loopback.
func connection(t *testing.T, network string) (client, server *net.TCPConn) {
	l, err := net.ListenTCP(network, nil)
	require.NoError(t, err)
	defer l.Close()
	to := l.Addr().(*net.TCPAddr)
	to.IP = net.IPv4(127, 0, 0, 1)
	if network == "tcp6" {
		to.IP = net.IPv6loopback
	}
	c, err := net.DialTCP("tcp", nil, to)
	require.NoError(t, err)
	s, err := l.AcceptTCP()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Close()
		_ = s.Close()
	})
	return c, s
}

// eventually waits for what the broker does beside the client.
func eventually(t *testing.T, is func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), what)
	}
}
