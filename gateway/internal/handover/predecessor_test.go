package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestBeginBeside: a gateway starts beside one that drains and beside none, and leaves the
// admin socket to one that serves new connections.
func TestBeginBeside(t *testing.T) {
	o := Options{Logger: slog.New(slog.DiscardHandler), Version: "2.0.0"}
	for name, tt := range map[string]struct {
		beside *fakeGateway
		err    error
	}{
		"none":   {},
		"drains": {beside: &fakeGateway{draining: &report.DrainInfo{Schema: report.DrainSchema, Flows: 3}}},
		"serves": {&fakeGateway{}, errEnded},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := place(t)
			if tt.beside != nil {
				beside := cfg
				beside.Admin += config.DrainingSuffix
				tt.beside.serve(t, beside)
			}
			for _, o.TakeOver = range []bool{false, true} {
				p, server, err := Begin(t.Context(), cfg, o)
				require.ErrorIs(t, err, tt.err)
				if err != nil {
					require.ErrorContains(t, err, cfg.Admin+".old")
					require.ErrorContains(t, err, errServes.Error())
					require.Nil(t, server)
					require.NoFileExists(t, cfg.Admin)
					continue
				}
				require.Equal(t, tt.beside != nil, p != nil)
				p.Close()
				require.NoError(t, server.Close())
			}
		})
	}
}

// dead leaves the socket of a process that has ended.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

// silent leaves a socket on which a process listens that stands still: its queue is full.
func silent(t *testing.T, path string) {
	t.Helper()
	at := &unix.SockaddrUnix{Name: path}
	for i := 0; ; i++ {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		if i == 0 {
			require.NoError(t, errors.Join(unix.Bind(fd, at), unix.Listen(fd, 0)))
			continue
		}
		if err := unix.Connect(fd, at); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			return
		}
	}
}

// TestBeginAtASocket: where a socket is that of a process that has ended, there is no gateway.
// Where it is not, there may be one, and its socket stays.
func TestBeginAtASocket(t *testing.T) {
	for _, aside := range []string{"", config.DrainingSuffix} {
		for name, leave := range map[string]func(*testing.T, string){"dead": dead, "silent": silent} {
			for _, takeOver := range []bool{false, true} {
				t.Run(fmt.Sprint(name, aside, takeOver), func(t *testing.T) {
					cfg := place(t)
					leave(t, cfg.Admin+aside)
					p, server, err := Begin(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler), TakeOver: takeOver})
					require.Nil(t, p)
					if name == "dead" {
						require.NoError(t, err)
						require.NoError(t, server.Close())
						return
					}
					require.ErrorContains(t, err, cfg.Admin+aside)
					require.ErrorIs(t, err, unix.EAGAIN)
					require.FileExists(t, cfg.Admin+aside)
				})
			}
		}
	}
}

// fakeDatapath is one beside that of a predecessor.
type fakeDatapath struct {
	active, off atomic.Bool
}

func (d *fakeDatapath) Activate() error {
	d.active.Store(true)
	return nil
}

func (d *fakeDatapath) SetOff(off bool) error {
	if d.active.Load() {
		return errors.New("connections are let in")
	}
	d.off.Store(off)
	return nil
}

// yielded is a successor of a gateway at the last step, with its admin server.
func (f *fakeGateway) yielded(t *testing.T) (*Predecessor, *admin.Server) {
	t.Helper()
	cfg := place(t)
	f.serve(t, cfg)
	p, server, err := Begin(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler), TakeOver: true})
	require.NoError(t, err)
	require.Nil(t, server)
	asked := make(chan time.Time, 1)
	server, err = p.Yield(t.Context(), cfg, func(ctx context.Context) {
		end, _ := ctx.Deadline()
		asked <- end.Add(-45 * time.Second)
		<-ctx.Done()
	})
	require.NoError(t, err)
	// A successor that hangs must be late early enough for its guardian to end it before f gives it up.
	require.Equal(t, p.asked, <-asked)
	return p, server
}

// TestTakeOver: connections are let in when the other gateway has left them, or has died,
// and not before.
func TestTakeOver(t *testing.T) {
	for name, tt := range map[string]struct {
		refuses            error
		dies, off, isToEnd bool
	}{"leaves": {}, "is off": {off: true}, "refuses": {refuses: errors.New("map full")}, "dies": {dies: true}, "is to drain": {isToEnd: true, dies: true}} {
		t.Run(name, func(t *testing.T) {
			var b fakeDatapath
			old := &fakeGateway{off: tt.off, leave: func() error {
				if b.active.Load() {
					return errors.New("connections are let in")
				}
				return tt.refuses
			}}
			p, server := old.yielded(t)
			if tt.isToEnd {
				require.NoError(t, old.incumbent.End(func() error { return nil }))
				require.Equal(t, []string{"yield", "take back"}, old.done())
			}
			if tt.dies {
				old.stop()
			}
			err := p.TakeOver(t.Context(), &b)
			require.NoError(t, server.Close())
			p.Close()
			require.Equal(t, tt.off, b.off.Load())
			if tt.isToEnd { // and is not to be here again
				require.ErrorIs(t, err, errEnded)
				require.ErrorContains(t, err, errToDrain.Error())
				require.False(t, b.active.Load())
				return
			}
			if tt.refuses == nil {
				require.NoError(t, err)
				require.True(t, b.active.Load())
				return
			}
			require.ErrorContains(t, err, "map full")
			require.False(t, b.active.Load())
			old.await(t, "yield", "leave", "take back")
		})
	}
}

// TestTakeOverGivenUp: the other gateway takes everything back when this one has freed it.
func TestTakeOverGivenUp(t *testing.T) {
	old := &fakeGateway{}
	p, server := old.yielded(t)
	told, cancel := context.WithCancel(t.Context())
	cancel() // to end, while it makes its gateway
	var b fakeDatapath
	require.ErrorIs(t, p.TakeOver(told, &b), context.Canceled)
	require.False(t, b.active.Load())
	require.NoError(t, server.Close())
	require.Equal(t, []string{"yield"}, old.done(), "the other gateway takes nothing back that is not free")
	p.Close() // after the ports
	old.await(t, "yield", "take back")
}

// TestEndLate: a successor that hangs when the other gateway has taken everything back ends, and
// one that ends by itself, or whose predecessor has died, does not die.
func TestEndLate(t *testing.T) {
	for name, tt := range map[string]struct{ word, closes, dies bool }{
		"hangs": {word: true, dies: true}, "ends": {word: true, closes: true}, "goes on alone": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				dead := false
				held := newTalk(near, Options{Logger: slog.New(slog.DiscardHandler), Die: func() { dead = true }}.late)
				if tt.word {
					require.NoError(t, newLine(far).say(message{Error: errLate.Error()}))
				}
				require.NoError(t, far.Close())
				time.Sleep(endPatience - time.Second)
				if tt.closes {
					held.close()
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, tt.dies, dead)
				held.close()
			})
		})
	}
}
