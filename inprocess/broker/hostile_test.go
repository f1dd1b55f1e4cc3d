package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/internal/fdpass"
	"github.com/smcgw/smcgw/lab/testnet"
)

// promotes checks that two libraries are served as ever.
func promotes(t *testing.T, at string) {
	t.Helper()
	a, z := connect(t, at), connect(t, at)
	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	a.granted(0x20001)
	z.granted(0x20001)
	a.close()
	z.close()
}

// TestHostileClients: whatever a client says that cannot be ends it, and nobody else.
func TestHostileClients(t *testing.T) {
	b, at := serve(t, Config{})
	pipe := func() int {
		var p [2]int
		require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		require.NoError(t, unix.Close(p[1]))
		return p[0]
	}
	hello := inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 1}
	raw := func(l *library, body []byte, fds ...int) { require.NoError(t, fdpass.SendFDs(l.conn, body, fds)) }
	bystander := connect(t, at)
	for name, do := range map[string]func(l *library){
		"junk":             func(l *library) { raw(l, []byte("junk")) },
		"long record":      func(l *library) { raw(l, append(hello.Append(nil), 0), l.slab) },
		"very long record": func(l *library) { raw(l, make([]byte, 100000)) },
		"no slab":          func(l *library) { l.send(hello) },
		"two slabs":        func(l *library) { l.send(hello, l.slab, l.slab) },
		"many files": func(l *library) {
			fds := make([]int, fdpass.MaxFiles+20)
			for i := range fds {
				fds[i] = l.slab
			}
			raw(l, hello.Append(nil), fds...)
		},
		"no entries": func(l *library) { l.send(inprocess.Record{What: inprocess.Hello, A: 1}, l.slab) },
		"too many entries": func(l *library) {
			l.send(inprocess.Record{What: inprocess.Hello, A: 1, B: inprocess.EntriesMax + 1}, l.slab)
		},
		"pipe for a slab": func(l *library) { fd := pipe(); defer unix.Close(fd); l.send(hello, fd) },
		"disk for a slab": func(l *library) {
			f, err := os.Open("/proc/self/exe")
			require.NoError(t, err)
			defer f.Close()
			l.send(hello, int(f.Fd()))
		},
		"ask before hello":  func(l *library) { l.send(inprocess.Record{What: inprocess.Ask, Tag: 1}, l.slab) },
		"closed before":     func(l *library) { l.send(inprocess.Record{What: inprocess.Closed, Tag: 1}) },
		"broker's words":    func(l *library) { l.send(inprocess.Record{What: inprocess.Grant, Tag: 1}) },
		"hello again":       func(l *library) { l.hello(0); l.send(hello, l.slab) },
		"ask without":       func(l *library) { l.hello(0); l.send(inprocess.Record{What: inprocess.Ask, Tag: 1}) },
		"ask with no tag":   func(l *library) { l.hello(0); c, _ := connection(t, "tcp4"); l.ask(0, c) },
		"ask beyond":        func(l *library) { l.hello(0); c, _ := connection(t, "tcp4"); l.ask(256, c) },
		"ask with a file":   func(l *library) { l.hello(0); l.send(inprocess.Record{What: inprocess.Ask, Tag: 1}, l.slab) },
		"closed with files": func(l *library) { l.hello(0); l.send(inprocess.Record{What: inprocess.Closed, Tag: 1}, l.slab) },
		"another's run":     func(l *library) { l.hello(7); l.send(inprocess.Record{What: inprocess.Count, ID: 8}) },
	} {
		t.Run(name, func(t *testing.T) {
			was := b.Counters().Misbehaved
			l := dial(t, at)
			l.t = t
			l.slab = memory(t, 256*inprocess.EntrySize)
			do(l)
			l.ends()
			eventually(t, func() bool { return b.Counters().Misbehaved == was+1 }, "it is counted")
		})
	}
	promotes(t, at)
	bystander.send(inprocess.Record{What: inprocess.Closed, Tag: 77})
	eventually(t, func() bool { return b.Counters().Strays == 1 }, "the bystander is served")
}

// TestNoDescriptorForHello: that the broker has none left is not its clients' fault, and they are told.
func TestNoDescriptorForHello(t *testing.T) {
	b := New(Config{})
	defer b.stop()
	near, far, err := fdpass.Pair("client")
	require.NoError(t, err)
	conn, err := fdpass.Conn(near)
	require.NoError(t, err)
	defer conn.Close()
	there, err := fdpass.Conn(far)
	require.NoError(t, err)
	defer there.Close()
	c := &client{broker: b, conn: conn, desk: shared.None}
	c.raw, err = conn.SyscallConn()
	require.NoError(t, err)
	j, err := c.take(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 1}.Append(nil), nil, fdpass.ErrNoDescriptor)
	require.NoError(t, err)
	require.NoError(t, j(t.Context()))
	(&library{t: t, conn: there}).denied(0, inprocess.WhyLimit)
}

// lines counts those of a log, and what they say was left out.
type lines struct {
	slog.Handler
	written, leftOut atomic.Uint64
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.written.Add(1)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "lines_left_out" {
			l.leftOut.Add(a.Value.Uint64())
		}
		return true
	})
	return nil
}

// TestLogIsBounded: a client that misbehaves again and again does not fill the log.
func TestLogIsBounded(t *testing.T) {
	log := &lines{}
	b, at := serve(t, Config{Log: slog.New(log)})
	begun := time.Now()
	const times = 5 * linesAtOnce
	for range times {
		l := dial(t, at)
		l.send(inprocess.Record{What: inprocess.Grant})
		l.ends()
	}
	eventually(t, func() bool { return b.Counters().Misbehaved == times && b.Clients() == 0 }, "all have gone")
	require.LessOrEqual(t, log.written.Load(), linesAtOnce+uint64(time.Since(begun)/lineEvery)+1)
	b.lines.SetLimit(rate.Inf)
	b.warn("the next line")
	require.Equal(t, uint64(times+1), log.written.Load()+log.leftOut.Load())
}

// stuck names no connection until it ends, as a socket that its program holds in a system call that does not end.
type stuck chan struct{}

func (s stuck) Of(int, bool) (mine, peer uint32, client bool, err error) {
	<-s
	return 0, 0, false, errNoName
}

// TestStuckClient: neither the end of a broker waits for one, nor the next broker.
func TestStuckClient(t *testing.T) {
	at := filepath.Join(t.TempDir(), "s")
	left, err := Listen(at, 0o600)
	require.NoError(t, err)
	l, err := Listen(at, 0o600) // nobody accepts
	require.NoError(t, err)
	t.Cleanup(func() { _ = left.Close() })

	s := make(stuck)
	b := New(Config{Namer: s})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Serve(ctx, l) }()
	a := connect(t, at)
	_, err = Listen(at, 0o600)
	require.ErrorIs(t, err, unix.EADDRINUSE)
	client, _ := connection(t, "tcp4")
	a.ask(0x20001, client)
	eventually(t, func() bool { return b.Counters().ProcessesTotal > 0 }, "it asks")
	cancel()
	require.NoError(t, <-done)
	close(s)
	a.close()
	eventually(t, func() bool { return b.Clients() == 0 }, "it is let go")
}

// TestSocketsThatCannotBe: each is denied with its reason and at once, and the client goes on.
func TestSocketsThatCannotBe(t *testing.T) {
	_, at := serve(t, Config{Limits: Limits{Wait: time.Hour}})
	l := connect(t, at)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer udp.Close()
	var plain, multi net.ListenConfig
	plain.SetMultipathTCP(false)
	multi.SetMultipathTCP(true)
	listen := func(c *net.ListenConfig) *net.TCPListener {
		l, err := c.Listen(t.Context(), "tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l.(*net.TCPListener)
	}
	half, other := connection(t, "tcp4")
	require.NoError(t, half.CloseWrite())
	_, _ = other.Read(make([]byte, 1))
	self := selfConnected(t)
	defer self.Close()
	for i, x := range []struct {
		conn interface{ File() (*os.File, error) }
		why  inprocess.Why
	}{{l.conn, inprocess.WhyOption}, {udp, inprocess.WhyOption}, {listen(&plain), inprocess.WhyNoPeer}, {listen(&multi), inprocess.WhyOption}, {half, inprocess.WhyNoPeer}, {self, inprocess.WhyNoPeer}} {
		f, err := x.conn.File()
		require.NoError(t, err)
		tag := uint32(0x20000 + i)
		l.send(inprocess.Record{What: inprocess.Ask, Tag: tag}, int(f.Fd()))
		l.denied(tag, x.why)
		require.NoError(t, f.Close())
	}
}

// selfConnected is a socket whose peer is itself, which TCP allows.
func selfConnected(t *testing.T) *net.TCPConn {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	at := l.Addr().(*net.TCPAddr)
	require.NoError(t, l.Close())
	c, err := net.DialTCP("tcp4", at, at)
	require.NoError(t, err)
	require.Equal(t, c.LocalAddr(), c.RemoteAddr())
	return c
}

// TestFINIsNotWithheld: the broker holds no socket while an end waits.
func TestFINIsNotWithheld(t *testing.T) {
	b, at := serve(t, Config{})
	l := connect(t, at)
	client, server := connection(t, "tcp4")
	l.ask(0x20001, client)
	eventually(t, func() bool { return b.Counters().Waiting == 1 }, "it waits")
	require.NoError(t, client.Close())
	_ = server.SetReadDeadline(time.Now().Add(patience))
	_, err := server.Read(make([]byte, 1))
	require.EqualError(t, err, "EOF")
}

// TestFINIsNotWithheldByOthers: nor while it decides about another socket of the process. What the process said stays in order.
func TestFINIsNotWithheldByOthers(t *testing.T) {
	scanned := make(chan struct{})
	b, at := serve(t, Config{Scanner: scanFunc(func(int) (bool, error) { <-scanned; return false, nil })})
	l, other := connect(t, at), connect(t, at)
	kept, peer := connection(t, "tcp4")
	client, server := connection(t, "tcp4")
	l.ask(0x20001, kept)
	l.ask(0x20002, client)
	require.NoError(t, client.Close())
	l.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20002})
	_ = server.SetReadDeadline(time.Now().Add(patience))
	_, err := server.Read(make([]byte, 1))
	close(scanned)
	require.EqualError(t, err, "EOF")
	eventually(t, func() bool { return l.word(inprocess.NewsQuestions) == 2 }, "both sockets are closed")
	other.ask(0x20001, peer)
	l.granted(0x20001)
	other.granted(0x20001)
	eventually(t, func() bool { c := b.Counters(); return c.Asks == 3 && c.Waiting == 0 && c.Strays == 0 }, "the closed one waits no more")
}

// TestWaitingEnds: a question is withdrawn, runs out, is replaced, or meets the switch.
func TestWaitingEnds(t *testing.T) {
	client, server := connection(t, "tcp4")
	hasty, there := serve(t, Config{Limits: Limits{Wait: 300 * time.Millisecond}})
	first := connect(t, there)
	first.ask(0x20001, client)
	first.denied(0x20001, inprocess.WhyNoPeer)
	require.Equal(t, uint64(1), hasty.Counters().Expired)

	// However slow the machine is, none of these runs out.
	b, at := serve(t, Config{Limits: Limits{Wait: time.Hour}})
	l, other := connect(t, at), connect(t, at)
	waits := func(n int) { t.Helper(); eventually(t, func() bool { return b.Counters().Waiting == n }, "waiting") }

	l.ask(0x40001, client)
	waits(1)
	l.send(inprocess.Record{What: inprocess.Closed, Tag: 0x40001, Why: inprocess.WhyOption})
	waits(0)
	require.Equal(t, uint64(1), b.Counters().Returned[inprocess.WhyOption])

	l.ask(0x60001, client)
	waits(1)
	other.ask(0x20001, client)
	l.denied(0x60001, inprocess.WhyShared)
	other.close()
	waits(0)

	l.ask(0x80001, client)
	waits(1)
	require.Zero(t, l.word(inprocess.NewsOff))
	b.SetOff(true)
	l.denied(0x80001, inprocess.WhyOff)
	require.NotZero(t, l.word(inprocess.NewsOff))
	l.ask(0xa0001, client)
	l.denied(0xa0001, inprocess.WhyOff)
	b.SetOff(false)
	b.SetPolicy(policyFunc(func(q Question) inprocess.Why {
		if q.Process.PID == os.Getpid() && q.Socket.Local.Port() == uint16(client.LocalAddr().(*net.TCPAddr).Port) {
			return inprocess.WhyPolicy
		}
		return inprocess.WhyNone
	}), Thresholds{Calls: 5})
	require.Zero(t, l.word(inprocess.NewsOff))
	require.Equal(t, uint32(5), l.word(inprocess.NewsCalls))
	l.ask(0xc0001, client)
	l.denied(0xc0001, inprocess.WhyPolicy)
	l.ask(0xe0002, server)
	waits(1)
	b.SetOff(true)
	l.denied(0xe0002, inprocess.WhyOff)
	eventually(t, func() bool { return l.word(inprocess.NewsGrants) == 5 }, "every answer is counted")
}

type policyFunc func(Question) inprocess.Why

func (f policyFunc) Select(q Question) inprocess.Why { return f(q) }

type scanFunc func(int) (bool, error)

func (f scanFunc) RawCalls(pid int) (bool, error) { return f(pid) }

func TestRawCalls(t *testing.T) {
	_, at := serve(t, Config{Scanner: scanFunc(func(pid int) (bool, error) { return pid == os.Getpid(), nil })})
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	l.ask(0x20001, client)
	l.denied(0x20001, inprocess.WhyRawCalls)
}

// TestUnreadable: a program that could not be examined stays native, but not for calls that nobody has seen.
func TestUnreadable(t *testing.T) {
	_, at := serve(t, Config{Scanner: scanFunc(func(int) (bool, error) { return true, os.ErrPermission })})
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	l.ask(0x20001, client)
	l.denied(0x20001, inprocess.WhyUnreadable)
}

// TestOneLookForManyQuestions: a program is looked at once for all questions that have come by then, and again for a later
// one.
func TestOneLookForManyQuestions(t *testing.T) {
	look, looks := make(chan bool), atomic.Int64{}
	_, at := serve(t, Config{Scanner: scanFunc(func(int) (bool, error) { looks.Add(1); return <-look, nil })})
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	l.ask(0x20001, client)
	eventually(t, func() bool { return looks.Load() == 1 }, "it is looked at")
	const more = 5
	for i := range uint32(more) {
		l.ask(0x20002+i, client)
	}
	eventually(t, func() bool { return l.word(inprocess.NewsQuestions) == 1+more }, "all have come")
	look <- true
	l.denied(0x20001, inprocess.WhyRawCalls)
	look <- true
	for i := range uint32(more) {
		l.denied(0x20002+i, inprocess.WhyRawCalls)
	}
	require.Equal(t, int64(2), looks.Load())
	l.ask(0x40001, client)
	look <- true
	l.denied(0x40001, inprocess.WhyRawCalls)
	require.Equal(t, int64(3), looks.Load())
}

// TestProcessThatCannotBeSeen: a broker in another PID namespace says so, and not that the program makes calls of its own.
func TestProcessThatCannotBeSeen(t *testing.T) {
	testnet.Require(t, "root")
	if at := os.Getenv(blindVariable); at != "" {
		b := New(Config{Scanner: scanFunc(func(int) (bool, error) { return true, nil })})
		l, err := Listen(at, 0o600)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { _, _ = os.Stdin.Read(make([]byte, 1)); cancel() }()
		require.NoError(t, b.Serve(ctx, l))
		return
	}
	at := filepath.Join(t.TempDir(), "s")
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(self, "-test.run=^TestProcessThatCannotBeSeen$", "-test.count=1")
	c.Env = append(os.Environ(), blindVariable+"="+at)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	stdin, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	eventually(t, func() bool {
		probe, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
		return err == nil && probe.Close() == nil
	}, "it serves")
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	l.ask(0x20001, client)
	l.denied(0x20001, inprocess.WhyUnseen)
	l.close()
	require.NoError(t, stdin.Close())
	require.NoError(t, c.Wait())
}

const blindVariable = "BROKER_TEST_BLIND"

// TestBusyProcess: one that has asked much, and does not read for a while, gets all answers.
func TestBusyProcess(t *testing.T) {
	b, at := serve(t, Config{})
	busy, l := dial(t, at), dial(t, at)
	for _, l := range []*library{busy, l} {
		l.entries = 1024
		l.hello(0)
	}
	const pairs = 600
	for tag := uint32(0x20001); tag < 0x20001+pairs; tag++ {
		client, server := connection(t, "tcp4")
		busy.ask(tag, client)
		l.ask(tag, server)
		l.granted(tag).let()
	}
	for tag := uint32(0x20001); tag < 0x20001+pairs; tag++ {
		busy.granted(tag).let()
	}
	eventually(t, func() bool { return busy.word(inprocess.NewsGrants) == pairs }, "news count them")
	require.Equal(t, 2, b.Counters().Processes)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Zero(t, b.owedFiles)
	for _, u := range b.core.users {
		require.Zero(t, u.owed)
	}
}

// TestDeafProcess: one that never reads is let go of with the first answer that is one too many. Where that was to be a
// grant its peer is told, and nothing is left.
func TestDeafProcess(t *testing.T) {
	b, at := serve(t, Config{Limits: Limits{Owed: 3}})
	l := connect(t, at)
	client, server := connection(t, "tcp4")
	asks := uint64(0)
	ask := func(deaf *library, i int) { // denies the question before
		deaf.ask(uint32(i)<<inprocess.IndexBits|uint32(i%2), client)
		asks++
		eventually(t, func() bool { return b.Counters().Asks == asks }, "the question is taken in")
	}
	deaf := connect(t, at)
	n := 1
	for ; b.Counters().QueueFull == 0; n++ {
		ask(deaf, n)
		require.Less(t, n, 10000)
	}
	eventually(t, func() bool { return b.Counters().Processes == 1 }, "it is let go of")
	require.Zero(t, b.Counters().Waiting)
	got := uint32(1) // the end of the conversation
	for deaf.reads() {
		got++
	}
	require.Equal(t, deaf.word(inprocess.NewsGrants), got)

	deaf = connect(t, at)
	for i := 1; i < n-1; i++ {
		ask(deaf, i)
	}
	require.Equal(t, 1, b.Counters().Waiting)
	l.ask(0x20001, server)
	l.denied(0x20001, inprocess.WhyLimit)
	eventually(t, func() bool { return b.Counters().Processes == 1 }, "it is let go of")
	c := b.Counters()
	require.Zero(t, c.Conns)
	require.NotZero(t, c.Memory, "its memory is under way")
	require.Equal(t, uint64(1), c.Undone)
	deaf.close()
	eventually(t, func() bool { return b.Counters().Memory == 0 }, "nobody gets it")
	promotes(t, at)
}

// TestMemoryCountsAsLongAsItIsHeld: what a process does not let go of counts for its user, whatever the process says, and also
// when it has left.
func TestMemoryCountsAsLongAsItIsHeld(t *testing.T) {
	for name, hold := range map[string]func(own granted) (let func()){
		"open":   func(own granted) func() { return own.let },
		"mapped": mapped(unix.PROT_READ|unix.PROT_WRITE, func(g granted) int { return g.own }),
		"read":   mapped(unix.PROT_READ, func(g granted) int { return g.peer }),
	} {
		t.Run(name, func(t *testing.T) {
			b, at := serve(t, Config{Limits: Limits{Conns: 1}})
			a, z := connect(t, at), connect(t, at)
			client, server := connection(t, "tcp4")
			a.ask(0x20001, client)
			z.ask(0x20001, server)
			own, peer := a.granted(0x20001), z.granted(0x20001)
			let := hold(own)
			peer.let()
			a.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001})
			z.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001})
			eventually(t, func() bool { return b.Counters().Conns == 0 }, "it has ended")
			a.close()
			time.Sleep(3 * firstLook)
			require.Equal(t, 2*inprocess.EndSize(inprocess.OrderMax), b.Counters().Memory)
			client, server = connection(t, "tcp4")
			y := connect(t, at)
			y.ask(0x20001, client)
			eventually(t, func() bool { return b.Counters().Waiting == 1 }, "it waits")
			z.ask(0x40001, server)
			y.denied(0x20001, inprocess.WhyLimit)
			z.denied(0x40001, inprocess.WhyLimit)
			let()
			eventually(t, func() bool { return b.Counters().Memory == 0 }, "it is let go of")
			y.ask(0x40001, client)
			z.ask(0x60001, server)
			y.granted(0x40001)
			z.granted(0x60001)
		})
	}
}

// mapped keeps memory mapped, and no descriptor.
func mapped(prot int, which func(granted) int) func(granted) func() {
	return func(g granted) func() {
		m, err := unix.Mmap(which(g), 0, 4096, prot, unix.MAP_SHARED)
		g.let()
		return func() { _ = errors.Join(err, unix.Munmap(m)) }
	}
}

// TestWhoHoldsMemory: it counts for the end that has it, and no more for the other one.
func TestWhoHoldsMemory(t *testing.T) {
	m, err := newMemories(1, inprocess.OrderMin)
	require.NoError(t, err)
	defer m.close()
	require.Equal(t, [2]bool{true, true}, m.holders())
	shared.Close(&m[0].Write, &m[1].Read)
	require.Equal(t, [2]bool{false, true}, m.holders(), "the second end has its own to write, and the first's to read")
	shared.Close(&m[1].Write)
	require.Equal(t, [2]bool{false, true}, m.holders(), "it reads")
	shared.Close(&m[0].Read)
	require.Equal(t, [2]bool{}, m.holders())
}

// TestClientsThatKeepTheirMemory: so many clients as there may be can have left, and their memory be held.
func TestClientsThatKeepTheirMemory(t *testing.T) {
	b, at := serve(t, Config{Limits: Limits{ProcessesPerUser: 1}})
	var kept []*library
	for range leftOfEach {
		l := connect(t, at)
		require.NoError(t, l.conn.Close())
		kept = append(kept, l)
		eventually(t, func() bool { return b.Clients() == 0 }, "it has left")
	}
	dial(t, at).denied(0, inprocess.WhyLimit)
	require.Equal(t, leftOfEach, b.Counters().Held)
	require.NoError(t, unix.Close(kept[0].desk))
	kept[0].desk = -1
	time.Sleep(3 * firstLook)
	require.Equal(t, leftOfEach, b.Counters().Held, "it has the news")
	for _, l := range kept {
		l.close()
	}
	eventually(t, func() bool { return b.Counters().Held == 0 }, "all are let go of")
	connect(t, at)
}

// TestQuotas: what is beyond them is denied, to both ends.
func TestQuotas(t *testing.T) {
	one := 2 * inprocess.EndSize(inprocess.OrderMin)
	b, at := serve(t, Config{Limits: Limits{Processes: 3, AsksPerUser: 1, Memory: one, MemoryPerUser: one}})
	a, z := connect(t, at), connect(t, at)
	c1, s1 := connection(t, "tcp4")
	c2, s2 := connection(t, "tcp4")
	a.ask(0x20001, c1)
	eventually(t, func() bool { return b.Counters().Waiting == 1 }, "it waits")
	z.ask(0x20001, c2)
	z.denied(0x20001, inprocess.WhyLimit)
	z.ask(0x20002, s1)
	a.granted(0x20001)
	z.granted(0x20002)
	a.ask(0x20003, c2)
	eventually(t, func() bool { return b.Counters().Waiting == 1 }, "it waits")
	z.ask(0x20003, s2)
	z.denied(0x20003, inprocess.WhyMemory)
	a.denied(0x20003, inprocess.WhyMemory)
	require.Equal(t, one, b.Counters().Memory)

	dial(t, at)
	eventually(t, func() bool { return b.Counters().Processes == 3 }, "the third client")
	fourth := dial(t, at)
	fourth.denied(0, inprocess.WhyLimit)
	fourth.ends()
	require.Equal(t, uint64(2), b.Counters().Denied[inprocess.WhyLimit], "a program that is refused shows")
}

// TestSlabThatIsCutShort: it says nothing, and the rest goes on.
func TestSlabThatIsCutShort(t *testing.T) {
	b, at := serve(t, Config{})
	a, z := connect(t, at), connect(t, at)
	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	g := a.granted(0x20001)
	z.granted(0x20001)
	for n, want := range map[int64]inprocess.State{ // 1 is in the middle of the report
		256 * inprocess.EntrySize: inprocess.StatePromoted, inprocess.EntrySize + 8: inprocess.StateMapped, 0: inprocess.StateMapped,
	} {
		require.NoError(t, unix.Ftruncate(a.slab, 256*inprocess.EntrySize))
		a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: g.ID})
		require.NoError(t, unix.Ftruncate(a.slab, n))
		found := false
		for _, e := range b.Snapshot().Ends {
			if e.Side == g.Side {
				require.Equal(t, want, e.Report.State)
				found = true
			}
		}
		require.True(t, found)
	}
}

// fork connects a forked child of a library's process, which has the same slab.
func fork(t *testing.T, at string, l *library) {
	child := dial(t, at)
	child.send(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: l.entries}, l.slab)
	_, fds := child.receive()
	fdpass.CloseFDs(fds)
}

// TestSnapshotHasWhatOthersPromoted: ends of a broker before, and those that never ask, are in the slabs.
func TestSnapshotHasWhatOthersPromoted(t *testing.T) {
	b, at := serve(t, Config{})
	l := connect(t, at)
	l.report(9, inprocess.Report{State: inprocess.StatePromoted, ID: 5, Cookie: 3})
	l.report(200, inprocess.Report{State: inprocess.StateNever, Why: inprocess.WhyOption})
	l.report(201, inprocess.Report{State: inprocess.StateNative})
	fork(t, at, l)
	s := b.Snapshot()
	require.Len(t, s.Processes, 2)
	require.Len(t, s.Ends, 2)
	require.Equal(t, uint64(5), s.Ends[0].ID)
	require.Equal(t, inprocess.WhyOption, s.Ends[1].Report.Why)
	require.Equal(t, os.Getpid(), s.Ends[1].Process.PID)
}

// TestSnapshotLacksWhatIsOver: a process that dies leaves its ends promoted in the slab that others have, too. They are
// listed for as long as one of those may go on with the connection.
func TestSnapshotLacksWhatIsOver(t *testing.T) {
	b, at := serve(t, Config{})
	a, z := connect(t, at), connect(t, at)
	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	g := a.granted(0x20001)
	z.granted(0x20001).let()
	a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: g.ID, RxRing: 10})
	fork(t, at, a)
	z.close()
	require.NoError(t, a.conn.Close())
	eventually(t, func() bool { return b.Counters().Processes == 1 && b.Counters().Conns == 0 }, "both have gone")
	require.Len(t, b.Snapshot().Ends, 1)
	g.let()
	eventually(t, func() bool { return len(b.Snapshot().Ends) == 0 }, "nobody has the connection")
	require.Zero(t, b.Snapshot().Counters.Conns)
}

// TestBytesCountOnce: of a connection that another broker promoted counts what moves from now on, and it stays when that ends.
func TestBytesCountOnce(t *testing.T) {
	b, at := serve(t, Config{})
	a, z := connect(t, at), connect(t, at)
	total := func() uint64 { s := b.Snapshot(); return s.Counters.MovedBytes + s.RingBytes() }
	says := func(moved uint64) {
		a.report(9, inprocess.Report{State: inprocess.StatePromoted, ID: 5, RxRing: moved})
		z.report(8, inprocess.Report{State: inprocess.StatePromoted, ID: 5, TxRing: moved})
	}
	says(1000)
	require.Zero(t, total())
	says(1100)
	require.Equal(t, uint64(100), total())
	says(0)
	a.send(inprocess.Record{What: inprocess.Closed, Tag: 9, ID: 5, A: 1150})
	z.send(inprocess.Record{What: inprocess.Closed, Tag: 8, ID: 5, B: 1150})
	eventually(t, func() bool { return b.Counters().Strays == 2 }, "it is closed")
	require.Equal(t, uint64(150), total())

	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	id := a.granted(0x20001).ID
	z.granted(0x20001)
	child := dial(t, at) // goes on with the connections of its parent
	child.send(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: a.entries}, a.slab)
	_, fds := child.receive()
	fdpass.CloseFDs(fds)
	a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: id, RxRing: 10})
	require.Equal(t, uint64(160), total())
	z.close()
	require.NoError(t, a.conn.Close())
	eventually(t, func() bool { return b.Counters().Conns == 0 }, "who asked has gone")
	require.Equal(t, uint64(160), total())
	a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: id, RxRing: 30})
	require.Equal(t, uint64(180), total())
}

// TestSnapshotHasAllProcesses: slabs have room for many more ends than they have.
func TestSnapshotHasAllProcesses(t *testing.T) {
	b, at := serve(t, Config{})
	const processes = 2 * snapshotEntries / inprocess.EntriesMax
	for range processes {
		l := dial(t, at)
		l.entries = inprocess.EntriesMax
		l.hello(0)
		l.report(0, inprocess.Report{State: inprocess.StatePromoted, ID: 5})
		l.report(inprocess.EntriesMax-1, inprocess.Report{State: inprocess.StatePromoted, ID: 6})
	}
	s := b.Snapshot()
	require.Len(t, s.Processes, processes)
	require.Len(t, s.Ends, 2*processes)
}

// spins costs a processor's time.
func spins(d time.Duration) {
	for begun := threadTime(); threadTime()-begun < d; {
	}
}

// TestEffortOfAUser: programs that are dear to look at are looked at as long as their user's share of the broker's time
// lasts. What else the user's programs say is heard, and others have shares of their own.
func TestEffortOfAUser(t *testing.T) {
	b, at := serve(t, Config{Scanner: scanFunc(func(int) (bool, error) { spins(200 * time.Millisecond); return true, nil })})
	l := connect(t, at)
	client, _ := connection(t, "tcp4")
	effort := func(uid int) *effort { b.mu.Lock(); defer b.mu.Unlock(); return b.effortFor(uint32(uid)) }
	mine := effort(os.Getuid())
	mine.left.SetLimit(0) // nothing comes back
	looks := uint32(0)
	for tag := uint32(0x20001); ; tag += 1 << inprocess.IndexBits {
		l.ask(tag, client)
		r, _ := l.receive()
		require.Equal(t, inprocess.Deny, r.What)
		if r.Why == inprocess.WhyLimit {
			break
		}
		looks++
	}
	require.LessOrEqual(t, looks, uint32(effortAtOnce/2/(200*time.Millisecond))+1)
	require.Positive(t, looks)
	l.send(inprocess.Record{What: inprocess.Closed, Tag: 77})
	eventually(t, func() bool { return b.Counters().Strays == 1 }, "it is heard")
	require.True(t, effort(os.Getuid()+1).look(t.Context(), func() {}))
}

// TestEffortIsOwed: who has used up more than there is waits before the next record.
func TestEffortIsOwed(t *testing.T) {
	e := newEffort()
	require.Zero(t, e.spend(func() {}))
	e.left.SetLimit(rate.Limit(time.Millisecond))
	e.left.ReserveN(time.Now(), int(effortAtOnce))
	require.Positive(t, e.spend(func() { spins(100 * time.Millisecond) }))
	require.False(t, e.rested())
}

// TestEffortIsChargedWhole: what one look costs beyond what may be saved up is owed, too.
func TestEffortIsChargedWhole(t *testing.T) {
	e, now := newEffort(), time.Now()
	require.Zero(t, e.charge(now, effortAtOnce))
	require.InDelta(t, (6 * time.Second).Seconds(), e.charge(now, 3*time.Second).Seconds(), 0.01)
}

// TestEffortOfComing: a client that says nothing has cost something, too.
func TestEffortOfComing(t *testing.T) {
	b, at := serve(t, Config{})
	dial(t, at)
	eventually(t, func() bool { return b.Clients() == 1 }, "it has come")
	b.mu.Lock()
	e := b.effortFor(uint32(os.Getuid()))
	b.mu.Unlock()
	e.left.SetLimit(0) // nothing comes back
	left := e.left.Tokens()
	dial(t, at)
	eventually(t, func() bool { return e.left.Tokens() < left }, "it costs")
	e.left.ReserveN(time.Now(), int(effortAtOnce))
	l := dial(t, at)
	l.slab = memory(t, inprocess.EntrySize)
	l.send(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 1}, l.slab)
	time.Sleep(firstLook)
	require.Empty(t, b.Processes(), "it waits")
	e.left.SetLimit(rate.Limit(effortAtOnce))
}

// TestEffortOfUsersThatHaveGone: what they have used up is kept until it has come back.
func TestEffortOfUsersThatHaveGone(t *testing.T) {
	b := New(Config{})
	defer b.stop()
	e := b.effortFor(1)
	e.left.SetLimit(0) // nothing comes back meanwhile
	e.spend(func() { spins(time.Millisecond) })
	b.effortFor(2)
	b.effortFor(3).clients++
	b.effortFor(4)
	require.Contains(t, b.efforts, uint32(1))
	require.NotContains(t, b.efforts, uint32(2))
	require.Contains(t, b.efforts, uint32(3))
}

// TestProgramsThatCannotBeLookedAt: files of a program that never answer keep some looks of its user waiting, and no more.
func TestProgramsThatCannotBeLookedAt(t *testing.T) {
	answer := make(chan struct{})
	looks := atomic.Int64{}
	_, at := serve(t, Config{Scanner: scanFunc(func(int) (bool, error) { looks.Add(1); <-answer; return true, nil })})
	var stuck []*library
	client, _ := connection(t, "tcp4")
	for range looksAtOnce {
		l := connect(t, at)
		l.ask(0x20001, client)
		stuck = append(stuck, l)
	}
	eventually(t, func() bool { return looks.Load() == looksAtOnce }, "all are being looked at")
	l := connect(t, at)
	l.ask(0x20001, client)
	l.denied(0x20001, inprocess.WhyLimit)
	close(answer)
	for _, l := range stuck {
		l.denied(0x20001, inprocess.WhyRawCalls)
	}
	l.ask(0x40001, client)
	l.denied(0x40001, inprocess.WhyRawCalls)
}

// TestRunCounts: the sums of the processes of one run, also of those that have gone; not of another user's or run's.
func TestRunCounts(t *testing.T) {
	b, at := serve(t, Config{})
	const run = 77
	watch := dial(t, at)
	ask := func(why inprocess.Why) inprocess.Record {
		watch.send(inprocess.Record{What: inprocess.Count, ID: run, Why: why})
		r, _ := watch.receive()
		return r
	}
	require.Equal(t, inprocess.Record{What: inprocess.Count, ID: run}, ask(0))
	a, z, far := dial(t, at).hello(run), dial(t, at).hello(run), dial(t, at).hello(run+1)
	client, server := connection(t, "tcp4")
	a.ask(0x20001, client)
	z.ask(0x20001, server)
	within := a.granted(0x20001)
	z.granted(0x20001)
	client, server = connection(t, "tcp4")
	a.ask(0x20002, client)
	far.ask(0x20002, server)
	across := a.granted(0x20002)
	far.granted(0x20002)
	a.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: within.ID, RxRing: 100, TxRing: 10})
	z.report(0x20001, inprocess.Report{State: inprocess.StatePromoted, ID: within.ID, RxRing: 10, TxRing: 100})
	far.report(0x20002, inprocess.Report{State: inprocess.StatePromoted, ID: across.ID, RxRing: 9999})
	require.Equal(t, inprocess.Record{What: inprocess.Count, ID: run, A: 2, B: 110, Tag: 2}, ask(0))
	z.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20001, ID: within.ID, Why: inprocess.WhyRecalled, A: 11, B: 100})
	a.report(9, inprocess.Report{State: inprocess.StateNever, Why: inprocess.WhyOption})
	a.report(0x20002, inprocess.Report{State: inprocess.StatePromoted, ID: across.ID, TxRing: 5})
	client, _ = connection(t, "tcp4")
	a.ask(0x20003, client)
	eventually(t, func() bool { return b.Counters().Waiting == 1 }, "it waits")
	a.send(inprocess.Record{What: inprocess.Closed, Tag: 0x20003})
	a.ask(0x40003, client)
	eventually(t, func() bool { return b.Counters().Asks == 6 && b.Counters().Waiting == 1 }, "it waits again")
	a.close()
	z.close()
	eventually(t, func() bool { return ask(0).Tag == 0 }, "its processes have ended")
	require.Equal(t, uint64(2), ask(inprocess.WhyNoPeer).A, "those that waited for the other end until their own")
	require.Equal(t, inprocess.Record{What: inprocess.Count, ID: run, A: 2, B: 116}, ask(0))
	require.Equal(t, uint64(1), ask(inprocess.WhyRecalled).A)
	require.Equal(t, uint64(1), ask(inprocess.WhyOption).A)
	watch.close()
	far.close()
	eventually(t, func() bool { return b.Clients() == 0 }, "all have gone")
	require.Empty(t, b.core.runs)
}

// TestKilledClients: processes that are killed at any moment leave nothing behind, and their peers are told.
func TestKilledClients(t *testing.T) {
	if at := os.Getenv(victimVariable); at != "" {
		victim(t, at)
		return
	}
	var told [ToldDenied + 1]atomic.Int64
	b, at := serve(t, Config{Tell: func(what Told, _ End, _ inprocess.Why) { told[what].Add(1) }})
	self, err := os.Executable()
	require.NoError(t, err)
	for i := range 12 {
		ctx, cancel := context.WithCancel(context.Background())
		c := exec.CommandContext(ctx, self, "-test.run=^TestKilledClients$", "-test.count=1")
		c.Env = append(os.Environ(), victimVariable+"="+at)
		require.NoError(t, c.Start())
		total := b.Counters().Promoted
		eventually(t, func() bool { return b.Counters().Promoted > total }, "the victim promotes")
		time.Sleep(time.Duration(i) * time.Millisecond)
		cancel()
		_ = c.Wait()
	}
	eventually(t, func() bool {
		c := b.Counters()
		return c.Processes == 0 && c.Conns == 0 && c.Waiting == 0 && c.Memory == 0
	}, "nothing is left")
	require.Zero(t, b.Counters().Misbehaved)
	require.Equal(t, told[ToldPromoted].Load(), told[ToldEnded].Load(), "the ends of one that is killed have ended")
	promotes(t, at)
}

// TestClientsThatDoNotWait: a process that ends before it has its answer has done nothing wrong.
func TestClientsThatDoNotWait(t *testing.T) {
	b, at := serve(t, Config{})
	for range 200 {
		l := dial(t, at)
		l.slab = memory(t, 256*inprocess.EntrySize)
		l.send(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: l.entries}, l.slab)
		l.close()
	}
	eventually(t, func() bool { return b.Clients() == 0 }, "all have ended")
	require.Zero(t, b.Counters().Misbehaved)
	promotes(t, at)
}

const victimVariable = "BROKER_TEST_VICTIM"

// victim promotes connections until it is killed.
func victim(t *testing.T, at string) {
	a, z := connect(t, at), connect(t, at)
	for i := uint32(1); ; i++ {
		client, server := connection(t, "tcp4")
		tag := i<<inprocess.IndexBits | i%256
		a.ask(tag, client)
		z.ask(tag, server)
		ga, gz := a.granted(tag), z.granted(tag)
		a.report(tag, inprocess.Report{State: inprocess.StatePromoted, ID: ga.ID})
		z.report(tag, inprocess.Report{State: inprocess.StatePromoted, ID: gz.ID})
		_, _ = unix.Pwrite(ga.own, []byte("x"), inprocess.RingAt)
		ga.let()
		gz.let()
		_ = client.Close()
		_ = server.Close()
	}
}

// FuzzClient: no packet of a client makes the broker fail, or leaves a descriptor open.
func FuzzClient(f *testing.F) {
	f.Add(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 4}.Append(nil), inprocess.Record{What: inprocess.Ask, Tag: 1}.Append(nil), uint8(1))
	f.Add(inprocess.Record{What: inprocess.Hello, A: inprocess.Version, B: 4}.Append(nil), inprocess.Record{What: inprocess.Closed, Tag: 1}.Append(nil), uint8(0))
	f.Fuzz(func(t *testing.T, first, second []byte, files uint8) {
		b := New(Config{})
		defer b.stop()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		defer unix.Close(fds[1])
		conn, err := fdpass.Conn(os.NewFile(uintptr(fds[0]), "client"))
		require.NoError(t, err)
		defer conn.Close()
		c := &client{broker: b, conn: conn, desk: shared.None}
		c.raw, err = conn.SyscallConn()
		require.NoError(t, err)
		require.True(t, b.join(c))
		defer b.leave(c, false)
		for i, body := range [][]byte{first, second} {
			var with []int
			for range (int(files) >> (4 * i)) & 3 {
				with = append(with, memory(t, 4096))
			}
			if j, err := c.take(body, with, nil); err != nil || j(t.Context()) != nil {
				return
			}
		}
	})
}

// TestReviewIsNoPolicy: ends that were refused ask again after a change of policy, and not because others are sent back.
func TestReviewIsNoPolicy(t *testing.T) {
	b, at := serve(t, Config{})
	l, other := connect(t, at), connect(t, at)
	l.report(1, inprocess.Report{State: inprocess.StatePromoted, ID: 1})
	was := other.word(inprocess.NewsPolicy)
	path := func(End) inprocess.Why { return inprocess.WhyPath }
	require.Equal(t, 1, b.Review(path))
	require.Equal(t, uint32(inprocess.OffSome), l.word(inprocess.NewsOff))
	require.Equal(t, uint32(2), l.word(inprocess.NewsKernel))
	require.Zero(t, b.Review(path))
	require.Zero(t, b.Review(nil))
	require.Zero(t, l.word(inprocess.NewsOff))
	require.Zero(t, l.word(inprocess.NewsKernel))
	require.Equal(t, was, other.word(inprocess.NewsPolicy))
	b.SetPolicy(nil, Thresholds{})
	require.Equal(t, was+1, other.word(inprocess.NewsPolicy))
}
