package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
)

// file is a configuration that can be unreadable, and a gateway that can refuse it.
type file struct {
	*Renewal
	unreadable, refused error
	inForce             []report.Mode
	keys                [][]byte
}

func newFile() *file {
	f := &file{}
	cfg := config.Config{Mode: report.ModeEnforce, Admin: "/run/a.sock"}
	f.Renewal = &Renewal{
		Log: slog.New(slog.DiscardHandler), Config: cfg, Reloads: new(Reloads),
		Load: func() (config.Config, error) { return cfg, f.unreadable },
		Apply: func(cfg config.Config, keys [][]byte) error {
			if f.refused == nil {
				f.inForce, f.keys = append(f.inForce, cfg.Mode), keys
			}
			return f.refused
		},
	}
	return f
}

func (f *file) status() report.Status {
	var st report.Status
	f.Reloads.Tell(&st)
	return st
}

// The status tells of a refusal until a reload succeeds, and the counters of all.
func TestAgain(t *testing.T) {
	f := newFile()
	require.Empty(t, f.status().Degraded)
	f.unreadable = errors.New("line 3: no such field")
	require.ErrorIs(t, f.takeIn(t.Context(), false), f.unreadable)
	require.Equal(t, []string{report.ConfigRefused}, f.status().Degraded)
	require.Contains(t, f.status().Notes[0], "line 3: no such field")
	f.unreadable, f.refused = nil, fmt.Errorf("devices: %w\nshm_dir: %w", config.ErrRestart, config.ErrRestart)
	require.ErrorIs(t, f.takeIn(t.Context(), false), f.refused)
	require.Contains(t, f.status().Notes[0], "the one before stays in force: devices: takes a restart; shm_dir: takes a restart; smcgw reload, or a restart, puts it in force")
	f.refused = ErrUnderWay
	require.ErrorIs(t, f.takeIn(t.Context(), false), ErrUnderWay)
	require.Contains(t, f.status().Notes[0], "a takeover is under way; reload when that is over")
	require.Empty(t, f.inForce)
	f.refused = nil
	require.NoError(t, f.takeIn(t.Context(), false))
	require.Equal(t, report.Status{}, f.status())
	require.Equal(t, []report.Mode{report.ModeEnforce}, f.inForce)
	var s report.Snapshot
	f.Reloads.AddTo(&s)
	require.Equal(t, map[string]uint64{"done": 1, "refused": 3}, s.Reloads)
}

// A configuration that is not of a file cannot be read again, and nothing is counted.
func TestNoFile(t *testing.T) {
	f := newFile()
	f.Load = nil
	require.ErrorIs(t, f.takeIn(t.Context(), false), errNoFile)
	require.Empty(t, f.status().Degraded)
}

// A signal has the configuration read; the loop ends with its context.
func TestLoop(t *testing.T) {
	f := newFile()
	ctx, stop := context.WithCancel(context.Background())
	signals, over := make(chan os.Signal, 1), make(chan struct{})
	applied := make(chan struct{}, 2)
	f.Apply = func(config.Config, [][]byte) error { applied <- struct{}{}; return nil }
	go func() {
		defer close(over)
		f.Loop(ctx, signals)
	}()
	for range 2 {
		signals <- syscall.SIGHUP
		select {
		case <-applied:
		case <-time.After(time.Minute):
			require.FailNow(t, "not read again")
		}
	}
	stop()
	<-over
}

// The keys are read beside the configuration: one whose keys cannot be read is refused.
func TestAgainReadsKeys(t *testing.T) {
	f := newFile()
	var cfg config.Config
	cfg.Security.PSKFile = filepath.Join(t.TempDir(), "psk")
	f.Load = func() (config.Config, error) { return cfg, nil }
	require.ErrorIs(t, f.takeIn(t.Context(), false), os.ErrNotExist)
	require.Empty(t, f.inForce)
	const key = "0123456789abcdef0123456789abcdef"
	require.NoError(t, os.WriteFile(cfg.Security.PSKFile, []byte(key+"\n"), 0o600))
	require.NoError(t, f.takeIn(t.Context(), false))
	require.Equal(t, [][]byte{[]byte(key)}, f.keys)
}

// Files that are not read are waited for by none that is to end or has left: neither the loop, nor a request.
func TestFilesThatAreNotRead(t *testing.T) {
	errStale := errors.New("stale file handle")
	for name, hang := range map[string]func(f *file, wait func()){
		"configuration": func(f *file, wait func()) {
			f.Load = func() (config.Config, error) { wait(); return config.Config{}, errStale }
		},
		"gateway": func(f *file, wait func()) {
			f.Apply = func(config.Config, [][]byte) error { wait(); return errStale }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, server := newFile(), make(chan struct{})
				f.Program = &process.Program{Path: "/proc/self/exe"}
				hang(f, func() { <-server })
				ctx, stop := context.WithCancel(t.Context())
				signals, over := make(chan os.Signal, 1), false
				signals <- syscall.SIGHUP
				go func() {
					f.Loop(ctx, signals)
					over = true
				}()
				synctest.Wait()
				request, leave := context.WithTimeout(t.Context(), time.Minute)
				defer leave()
				again := f.takeIn(request, false)
				_, successor := f.successor(request, true)
				stop()
				synctest.Wait()
				ended := over
				close(server)
				require.True(t, ended)
				require.ErrorIs(t, again, context.DeadlineExceeded)
				require.ErrorIs(t, successor, context.DeadlineExceeded)
				synctest.Wait()
				require.Len(t, f.status().Degraded, 1)
			})
		})
	}
}

// The program that is installed is started if it is another one than runs, or by demand, and
// never with a configuration that would end it.
func TestSuccessor(t *testing.T) {
	f := newFile()
	s, err := f.successor(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, s, "there is no program")
	_, err = f.successor(t.Context(), true)
	require.ErrorIs(t, err, errNoProgram)

	own, err := os.Executable()
	require.NoError(t, err)
	f.Program = &process.Program{Path: own}
	s, err = f.successor(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, s, "this program runs")

	script := filepath.Join(t.TempDir(), "smcgw")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	f.Program.Path = script
	f.unreadable = errors.New("line 3: no such field")
	_, err = f.successor(t.Context(), false)
	require.ErrorIs(t, err, f.unreadable)
	f.unreadable = nil
	f.Config.Admin = "/run/b.sock"
	for _, always := range []bool{false, true} {
		_, err = f.successor(t.Context(), always)
		require.ErrorIs(t, err, config.ErrStop)
	}
	require.Contains(t, f.status().Notes[0], "admin: takes a stop and a start; a stop and a start put it in force")
	f.Config.Admin = "/run/a.sock"
	s, err = f.successor(t.Context(), false)
	require.NoError(t, err)
	select {
	case err := <-s.Ended():
		require.Error(t, err, "it has ended though it was not released")
	case <-time.After(time.Minute):
		require.FailNow(t, "not started")
	}
	s.Release()
}

// A configuration that is refused is in the status and the log, also where the program was
// replaced meanwhile and another gateway would take over with it.
func TestRefused(t *testing.T) {
	var log strings.Builder
	r := &Renewal{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Reloads: new(Reloads), Program: &process.Program{Path: "/proc/self/exe"},
		Load: func() (config.Config, error) { return config.Config{}, errors.New("line 3: mdoe: unknown field") },
	}
	for n, attempt := range []func() error{
		func() error { return r.takeIn(t.Context(), false) },
		func() error { _, err := r.successor(t.Context(), true); return err },
	} {
		require.ErrorContains(t, attempt(), "mdoe")
		var st report.Status
		r.Reloads.Tell(&st)
		require.Contains(t, st.Degraded, report.ConfigRefused)
		require.Contains(t, st.Notes[0], "mdoe")
		require.Equal(t, n+1, strings.Count(log.String(), "configuration refused"))
		var s report.Snapshot
		r.Reloads.AddTo(&s)
		require.EqualValues(t, n+1, s.Reloads["refused"])
	}
}

// What takes a restart is a successor's to put in force; where none can be started it is refused.
func TestRenew(t *testing.T) {
	f := newFile()
	s, err := f.renew(t.Context(), false)
	require.NoError(t, err)
	require.Nil(t, s)
	require.Len(t, f.inForce, 1)

	f.refused = fmt.Errorf("carriers: %w", config.ErrRestart)
	_, err = f.renew(t.Context(), false)
	require.ErrorIs(t, err, config.ErrRestart)
	require.ErrorIs(t, err, errNoProgram)
	require.Equal(t, []string{report.ConfigRefused}, f.status().Degraded)

	script := filepath.Join(t.TempDir(), "smcgw")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	own, err := os.Executable()
	require.NoError(t, err)
	f = newFile()
	f.Program = &process.Program{Path: own}
	f.refused = errors.Join(config.ErrRestart, config.ErrStop)
	_, err = f.renew(t.Context(), false)
	require.ErrorIs(t, err, config.ErrStop)
	f = newFile()
	f.Program = &process.Program{Path: own}
	f.refused = config.ErrRestart
	f.Apply = func(config.Config, [][]byte) error {
		f.Program.Path = script // the program itself would start this test again
		return config.ErrRestart
	}
	s, err = f.renew(t.Context(), false)
	require.NoError(t, err)
	require.NotNil(t, s)
	require.Empty(t, f.status().Degraded)
	<-s.Ended()
	s.Release()
}

// fakeSuccessor is a gateway that has been started to take over.
type fakeSuccessor struct {
	ended          chan error
	released, told bool // told to end
}

func (f *fakeSuccessor) Ended() <-chan error { return f.ended }

func (f *fakeSuccessor) Release() { f.released = true }

func (f *fakeSuccessor) End() { f.told = true }

// A successor that has ended, is late, or whose gateway ends, is not left running; one to which new
// connections were left is, and is waited for.
func TestAwait(t *testing.T) {
	errEnds := errors.New("no such file")
	for name, tt := range map[string]struct {
		happens func(i *Incumbent, next *fakeSuccessor)
		after   time.Duration // of the wait
		err     error
	}{
		"late": {func(*Incumbent, *fakeSuccessor) {}, time.Minute + leftPatience, errSuccessorLate},
		"ends": {func(_ *Incumbent, next *fakeSuccessor) { next.ended <- errEnds }, leftPatience, errEnds},
		"left": {func(i *Incumbent, _ *fakeSuccessor) { close(i.left) }, leftPatience, nil},
		"left and ends": {func(i *Incumbent, next *fakeSuccessor) {
			next.ended <- errEnds
			time.AfterFunc(leftPatience/2, func() { close(i.left) })
		}, leftPatience / 2 * 3, nil},
		"follows": {func(i *Incumbent, _ *fakeSuccessor) {
			close(i.left)
			close(i.followed)
		}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, next := newFile(), &fakeSuccessor{ended: make(chan error, 1)}
				f.Incumbent = NewIncumbent(nil, f.Log)
				tt.happens(f.Incumbent, next)
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorIs(t, f.await(ctx, next), tt.err)
				require.InDelta(t, tt.after, time.Since(begin), float64(time.Microsecond))
				require.Equal(t, tt.err == nil, next.released)
				require.Equal(t, tt.err != nil, next.told)
			})
		})
	}
}

// A reload beside a takeover is refused, and one that fails beside a gateway that drains says so.
func TestRenewBesideOthers(t *testing.T) {
	f := newFile()
	f.Incumbent = NewIncumbent(nil, f.Log)
	var old *report.DrainInfo
	f.Old = func() *report.DrainInfo { return old }
	script := filepath.Join(t.TempDir(), "smcgw")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o700))
	f.Program = &process.Program{Path: script}
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := f.Renew(within, true)
	require.ErrorContains(t, err, "the new gateway has ended")
	old = &report.DrainInfo{Flows: 2, Lingering: 1, RemainingSeconds: 5}
	_, err = f.Renew(within, true)
	require.EqualError(t, err, "a gateway that drains is still there (connections: 3, for 5s at most); to reset them now: smcgw drain --timeout 1s --socket /run/a.sock.old")

	require.NoError(t, f.Incumbent.claim(func() {}, func() error { return nil }))
	_, err = f.Renew(within, false)
	require.ErrorIs(t, err, ErrUnderWay)
	require.Empty(t, f.inForce)
}

// Attempts that fail are spaced, and tell each error once.
func TestBackoff(t *testing.T) {
	var b Backoff
	now := time.Now()
	require.True(t, b.Over(now))
	require.True(t, b.Note(errNoFile, now))
	require.False(t, b.Over(now.Add(leastBackoff-1)))
	now = now.Add(leastBackoff)
	require.True(t, b.Over(now))
	require.False(t, b.Note(errNoFile, now))
	require.False(t, b.Over(now.Add(2*leastBackoff-1)))
	for range 20 {
		require.False(t, b.Note(errNoFile, now))
	}
	require.True(t, b.Over(now.Add(mostBackoff)))
	require.True(t, b.Note(errNoProgram, now))
	require.False(t, b.Note(nil, now))
	require.True(t, b.Over(now))
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
