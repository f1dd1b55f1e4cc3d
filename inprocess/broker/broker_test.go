package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/testnet"
)

func asNet(err error, to *net.Error) bool { return errors.As(err, to) }

func TestBothEndsAreGranted(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp", "tcp6"} { // tcp: the listener has an IPv6 socket, whose addresses are mapped
		t.Run(network, func(t *testing.T) {
			b, at := serve(t, Config{})
			a, z := connect(t, at), connect(t, at)
			client, server := connection(t, network)
			a.ask(0x20001, client)
			eventually(t, func() bool { return b.Counters().Waiting == 1 }, "the first end waits")
			z.ask(0x40002, server)
			g0, g1 := a.granted(0x20001), z.granted(0x40002)
			require.Equal(t, g0.ID, g1.ID)
			require.Equal(t, []uint32{0, 1}, []uint32{g0.Side, g1.Side})
			require.NotEqual(t, g0.A, g1.A, "each is told of the other's process")
			eventually(t, func() bool { return a.word(inprocess.NewsGrants) == 1 && z.word(inprocess.NewsGrants) == 1 }, "news count grants")
			checkMemory(t, g0, g1)
			checkDesk(t, a, g1)

			a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: g0.ID, RxRing: 5, TxRing: 7})
			z.report(0x40002, inprocess.Report{State: inprocess.StatePromoted, ID: g0.ID, RxRing: 7, TxRing: 5})
			s := b.Snapshot()
			require.Len(t, s.Ends, 2)
			require.Len(t, s.Processes, 2)
			require.Equal(t, uint64(12), s.RingBytes(), "a connection's bytes count once")
			for _, e := range s.Ends {
				require.Equal(t, os.Getpid(), e.Process.PID)
				require.NotEmpty(t, e.Process.Exe)
				require.Equal(t, procfs.NameOf(os.Getpid()), e.Process.Name)
				require.Equal(t, g0.ID, e.ID)
				require.Equal(t, int64(8192), e.Resident) // a page each
				want := client
				if e.Side == 1 {
					want = server
				} else {
					require.Equal(t, inprocess.Report{State: inprocess.StatePromoted, ID: g0.ID, RxRing: 5, TxRing: 7}, e.Report)
				}
				require.Equal(t, want.LocalAddr().(*net.TCPAddr).Port, int(e.Socket.Local.Port()))
				require.Equal(t, network != "tcp6", e.Socket.Local.Addr().Is4())
				require.Equal(t, []Role{RoleClient, RoleServer}[e.Side], e.Socket.Role)
			}
			a.report(0x20001, inprocess.Report{ID: g0.ID, RxRing: 5, TxRing: 7})
			a.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: g0.ID})
			eventually(t, func() bool { return len(b.Snapshot().Ends) == 1 }, "one end is closed")
			require.Equal(t, 1, b.Counters().Conns)
			z.close()
			eventually(t, func() bool { return b.Counters().Conns == 0 }, "both ends have gone")
			g0.let()
			g1.let()
			eventually(t, func() bool { return b.Counters().Memory == 0 }, "nobody has memory of it")
			require.Equal(t, uint64(12), b.Counters().MovedBytes)
		})
	}
}

// TestNobodyEndsWithTheBroker: promoted connections outlive it, and nobody is told that they have ended.
func TestNobodyEndsWithTheBroker(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	l, err := Listen(at, 0o600)
	require.NoError(t, err)
	told := map[Told]int{}
	b := New(Config{Tell: func(what Told, _ End, _ inprocess.Why) { told[what]++ }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx, l) }()
	a, z := connect(t, at), connect(t, at)
	for tag := uint32(0x20001); tag <= 0x20002; tag++ {
		client, server := connection(t, "tcp4")
		a.ask(tag, client)
		z.ask(tag, server)
		a.granted(tag)
		z.granted(tag)
	}
	a.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001})
	z.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001})
	eventually(t, func() bool { return b.Counters().Conns == 1 }, "one has ended")
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, map[Told]int{ToldPromoted: 4, ToldEnded: 2}, told)
}

// TestConnectionsOfAnotherBroker: a connection that an earlier broker has promoted is counted once, and each end has its
// side.
func TestConnectionsOfAnotherBroker(t *testing.T) {
	b, at := serve(t, Config{})
	for side := range uint16(2) {
		l := connect(t, at)
		l.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: 7, Side: side})
		l.report(0x20002, inprocess.Report{State: inprocess.StateNever, Side: side})
	}
	s := b.Snapshot()
	require.Equal(t, 1, s.Counters.Conns)
	sides := map[Role]int{}
	for _, e := range s.Ends {
		sides[e.Socket.Role]++
	}
	require.Equal(t, map[Role]int{RoleClient: 2, RoleServer: 2}, sides)
}

// TestConnectionsGoOnWithoutTheirConversation: a process that lets go of the broker, or is let go of, has its connections
// still. They end when it says so in its next conversation.
func TestConnectionsGoOnWithoutTheirConversation(t *testing.T) {
	var mu sync.Mutex
	var ended []End
	b, at := serve(t, Config{Tell: func(what Told, e End, why inprocess.Why) {
		mu.Lock()
		defer mu.Unlock()
		if what == ToldEnded {
			require.Equal(t, inprocess.WhyOption, why)
			ended = append(ended, e)
		}
	}})
	told := func() []End { mu.Lock(); defer mu.Unlock(); return slices.Clone(ended) }
	a, z := connect(t, at), connect(t, at)
	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	id := a.granted(0x20001).ID
	z.granted(0x20001)
	a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: id, Cookie: 7, RxRing: 5})
	require.NoError(t, a.conn.Close())
	eventually(t, func() bool { return b.Clients() == 1 }, "it is let go of")
	require.Empty(t, told())
	again := dial(t, at)
	again.slab, a.slab = a.slab, -1
	again.hello(0)
	again.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: id, Why: inprocess.WhyOption, A: 5})
	eventually(t, func() bool { return len(told()) == 1 }, "it has ended")
	require.Equal(t, uint64(7), told()[0].Socket.Cookie)
	require.Equal(t, id, told()[0].ID)
	again.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20002, ID: id + 1, A: 5})
	eventually(t, func() bool { return b.Counters().Strays == 2 }, "nothing is known of it")
	require.Len(t, told(), 1)
	z.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: id, Why: inprocess.WhyOption})
	eventually(t, func() bool { return len(told()) == 2 }, "the other end")
}

// checkMemory: an end writes its own memory, its peer sees it and cannot write.
func checkMemory(t *testing.T, g0, g1 granted) {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(g0.own, &st))
	require.Equal(t, inprocess.EndSize(inprocess.OrderMax), st.Size)
	require.Equal(t, uint32(0o600), st.Mode&0o777)
	for side, g := range []granted{g0, g1} {
		head := make([]byte, 24)
		_, err := unix.Pread(g.own, head, 0)
		require.NoError(t, err)
		require.Equal(t, shared.EndHead(g.ID, uint32(side), inprocess.OrderMax), head)
	}
	_, err := unix.Pwrite(g0.own, []byte("mine"), 100)
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = unix.Pread(g1.peer, got, 100)
	require.NoError(t, err)
	require.Equal(t, "mine", string(got))
	_, err = unix.Pwrite(g1.peer, got, 100)
	require.ErrorIs(t, err, unix.EBADF)
	_, err = unix.Mmap(g1.peer, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EACCES)
	for _, fd := range []int{g0.own, g0.peer, g1.own, g1.peer, g0.desk} {
		require.ErrorIs(t, unix.Ftruncate(fd, 4096*3), errOfTruncate(fd), "size is sealed")
	}
}

func errOfTruncate(fd int) error {
	if flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); flags&unix.O_ACCMODE == unix.O_RDONLY {
		return unix.EINVAL
	}
	return unix.EPERM
}

// checkDesk: a process writes its desk, and its peer sees it.
func checkDesk(t *testing.T, l *library, peer granted) {
	_, err := unix.Pwrite(l.desk, []byte("desk"), inprocess.DeskSlot)
	require.NoError(t, err)
	got := make([]byte, 8)
	_, err = unix.Pread(peer.desk, got, 0)
	require.NoError(t, err)
	require.Equal(t, shared.Head(8), got)
	got = got[:4]
	_, err = unix.Pread(peer.desk, got, inprocess.DeskSlot)
	require.NoError(t, err)
	require.Equal(t, "desk", string(got))
	_, err = unix.Pwrite(peer.desk, got, 0)
	require.ErrorIs(t, err, unix.EBADF)
}

// TestNewsCannotBeWritten: not even by who may open the file again.
func TestNewsCannotBeWritten(t *testing.T) {
	_, at := serve(t, Config{Thresholds: Thresholds{Calls: 3, Bytes: 1 << 40, Spin: 20 * time.Microsecond}})
	l := connect(t, at)
	require.Equal(t, uint32(inprocess.Magic), l.word(inprocess.NewsMagic))
	require.Equal(t, uint32(3), l.word(inprocess.NewsCalls))
	require.Equal(t, uint32(20), l.word(inprocess.NewsSpin))
	require.Equal(t, uint32(0), l.word(inprocess.NewsBytes))
	require.Equal(t, uint32(256), l.word(inprocess.NewsBytes+4))
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", l.news), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		_, err = unix.Pwrite(fd, []byte{1}, inprocess.NewsOff)
		require.ErrorIs(t, err, unix.EPERM)
		_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.ErrorIs(t, err, unix.EPERM)
	}
}

// TestListenLeavesFiles: what is in the place of the socket and none is somebody's.
func TestListenLeavesFiles(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.WriteFile(at, []byte("text"), 0o600))
	_, err := Listen(at, 0o600)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	require.FileExists(t, at)
}

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

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// TestRoom checks that a limit on the memory of a program's cgroup bounds the rings of the program.
func TestRoom(t *testing.T) {
	testnet.Require(t, "root")
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
		require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0))
	}
	dir, err := os.MkdirTemp(root, "smcgwt-room")
	require.NoError(t, err)
	cmd := exec.Command("sh", "-c", "echo $$ >"+dir+"/cgroup.procs; echo ready; exec sleep 60")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return os.Remove(dir) == nil }, 10*time.Second, time.Millisecond)
	}()
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("67108864"), 0))
	p := Process{PID: cmd.Process.Pid}
	p.look(nothing{})
	require.Equal(t, room{"/" + filepath.Base(dir), 64 << 20 / roomShare}, p.room)
}

// nothing is not a socket: look cannot tell whether the PID is reused.
type nothing struct{ syscall.RawConn }

func (nothing) Control(func(fd uintptr)) error { return os.ErrInvalid }

// TestDeniedAgain checks that an end which is denied again for the same reason is not told and counted again.
func TestDeniedAgain(t *testing.T) {
	var told atomic.Int64
	b, at := serve(t, Config{Tell: func(what Told, _ End, _ inprocess.Why) { told.Add(int64(what / ToldDenied)) }})
	b.SetOff(true)
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	raw, err := client.SyscallConn()
	require.NoError(t, err)
	for i, before := range []inprocess.Why{inprocess.WhyNone, inprocess.WhyOff, inprocess.WhyOff, inprocess.WhyNoPeer} {
		tag := 0x20001 + uint32(i)<<17
		require.NoError(t, raw.Control(func(fd uintptr) { l.send(inprocess.Record{What: inprocess.Ask, Tag: tag, Why: before}, int(fd)) }))
		l.denied(tag, inprocess.WhyOff)
	}
	require.EqualValues(t, 2, b.Counters().Denied[inprocess.WhyOff]) // waits until the last one is told
	require.EqualValues(t, 2, told.Load())
}
