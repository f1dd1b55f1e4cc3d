package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
	"github.com/smcgw/smcgw/verbs/soft"
)

// endless is a transfer that does not end while the tests last, in parts from 64 KiB on.
var endless = rstreamTest{size: 1 << 16, count: 1 << 30, iterations: 1}

// rstreamEndless runs the program with endless. It blocks: otherwise it takes the end of the stream for nothing to
// read yet, and retries for ever.
var rstreamEndless = []string{"rstream", "-T", "b", "-T", "v", "-S", strconv.Itoa(endless.size)}

// activity is what our side does when the other side dies.
type activity struct {
	name   string
	serves bool // the program serves
	use    func(r *rstream) error
}

var activities = []activity{
	{"while we receive", false, func(r *rstream) error { return r.receive(endless.size * endless.count) }},
	{"while we send", true, func(r *rstream) error { return r.send(endless.size*endless.count, endless.size) }},
	// The program does not read while it sends.
	{"while we cannot send", false, func(r *rstream) error { return r.send(endless.size*endless.count, endless.size) }},
	{"while nothing happens", true, func(r *rstream) error { return r.receive(1) }},
}

// begin starts the activity with a program and gives it time. The channel delivers the error that ends it.
func (a *activity) begin(t *testing.T, s *stack, port uint16, count int) (*socket.Conn, *remote.Process, <-chan error) {
	t.Helper()
	conn, program := s.withProgram(port, a.serves, append(rstreamEndless, "-C", strconv.Itoa(count), "-p", strconv.Itoa(int(port)))...)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	r := &rstream{conn: conn, client: a.serves}
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	require.NoError(t, r.turn(rstreamSync, 1))
	ended := make(chan error, 1)
	go func() { ended <- a.use(r) }()
	time.Sleep(500 * time.Millisecond)
	return conn, program, ended
}

// reset waits for the end of an activity and of everything else. As the peer has not ended in order, the error must
// be ECONNRESET.
func reset(t *testing.T, conn *socket.Conn, ended <-chan error, within time.Duration) {
	t.Helper()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NotErrorIs(t, err, io.EOF)
	case <-time.After(within):
		require.FailNow(t, "connection alive", "after %v: %v, %+v", within, conn.Err(), conn.Stats())
	}
	require.ErrorIs(t, conn.Err(), syscall.ECONNRESET)
	left, err := io.Copy(io.Discard, conn)
	require.ErrorIs(t, err, syscall.ECONNRESET, "after %d more bytes", left)
	_, err = conn.Write([]byte{0})
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
}

// TestStreamProgramDies kills the program at the other end.
func TestStreamProgramDies(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for i, a := range activities {
			for j, path := range l.paths() {
				if !thorough() && i%2 != j {
					continue
				}
				t.Run(a.name+" "+path.name, func(t *testing.T) {
					conn, program, ended := a.begin(t, l.stack(t, path), rstreamPort, endless.count)
					program.Kill()
					reset(t, conn, ended, time.Minute)
				})
			}
		}
	})
}

// TestStreamNetworkDies drops all packets in the middle. A side that only waits for data can find out only by its own
// probes. The program at the other end never does: its kernel takes 7 retries for infinitely many.
func TestStreamNetworkDies(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		var stacks []*stack
		for _, path := range l.paths() {
			s := l.stack(t, path)
			s.cfg.KeepAlive = time.Second
			stacks = append(stacks, s)
		}
		conns, ends := make([]*socket.Conn, len(activities)), make([]<-chan error, len(activities))
		for i, a := range activities {
			conns[i], _, ends[i] = a.begin(t, stacks[i%2], rstreamPort+uint16(i), endless.count)
		}
		l.lose(t, 1)
		for i := range conns {
			reset(t, conns[i], ends[i], 90*time.Second)
		}
	})
}

// failed waits for the end of a program, which must fail.
func failed(t *testing.T, p *remote.Process, within time.Duration) {
	t.Helper()
	var exit *remote.ExitError
	require.ErrorAs(t, p.Wait(patience(t, within)), &exit)
}

// TestStreamWeClose ends our side in order while the program sends, and while it waits for the rest of a file, for
// which rstream would wait for ever.
func TestStreamWeClose(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		t.Run("while we receive", func(t *testing.T) {
			conn, program, _ := activities[0].begin(t, l.stack(t, l.paths()[1]), rstreamPort, endless.count)
			require.NoError(t, conn.Close())
			failed(t, program, 10*time.Second)
		})
		t.Run("while we send", func(t *testing.T) {
			program := l.start(t, "rcopy")
			conn := l.stack(t, l.paths()[0]).dial(rcopyPort)
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			half := io.MultiReader(bytes.NewReader(counting), iotest.ErrReader(io.ErrNoProgress))
			require.ErrorIs(t, rcopySend(conn, "/tmp/part", half, int64(2*len(counting))), io.ErrNoProgress)
			require.NoError(t, conn.Close())
			require.NoError(t, program.WaitOutput(patience(t, 10*time.Second), "error receiving data"))
		})
	})
}

// childVariable makes the test binary play our side, to be killed, of a connection with a program that serves at the
// address in it.
const childVariable = "SMCGW_INTEROP_CHILD"

// child receives until it is killed.
func child(our, peer string) error {
	addr, err := netip.ParseAddr(our)
	if err != nil {
		return err
	}
	to, err := netip.ParseAddrPort(peer)
	if err != nil {
		return err
	}
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{addr}})
	if err != nil {
		return err
	}
	s, err := socket.NewStack(dev, socket.StackConfig{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := (&socket.Dialer{Stack: s}).Dial(ctx, to)
	for ; errors.Is(err, syscall.ECONNREFUSED); conn, err = (&socket.Dialer{Stack: s}).Dial(ctx, to) {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	r := &rstream{conn: conn, client: true}
	if err := r.turn(rstreamSync, 1); err != nil {
		return err
	}
	if err := r.send(childCount*endless.size, endless.size); err != nil {
		return err
	}
	for i := range childCount {
		if err := r.receive(endless.size); err != nil {
			return err
		}
		if i == childCount/10 {
			fmt.Println("receiving")
		}
	}
	return nil
}

// childCount is how many transfers the program makes: so many that it is not done by the time the test notices that
// it has begun.
const childCount = 400

// TestStreamWeDie kills our side while the program sends. The program's kernel then retries as often as we have told
// it. While it waits, the program does not notice: it takes an error for nothing to read yet.
func TestStreamWeDie(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		path := l.paths()[0]
		program := l.start(t, "rstream", "-T", "b", "-T", "v", "-S", strconv.Itoa(endless.size), "-C", strconv.Itoa(childCount),
			"-k", "1", "-b", path.peer.String())
		cmd := l.host.Command(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+path.our.String()+" "+netip.AddrPortFrom(path.peer, rstreamPort).String())
		p, err := l.host.StartCmd(cmd)
		require.NoError(t, err)
		require.NoError(t, p.WaitOutput(patience(t, time.Minute), "receiving"))
		require.NoError(t, p.Kill())
		failed(t, program, time.Minute)
	})
}
