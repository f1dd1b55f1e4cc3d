package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/internal/procfs"
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
