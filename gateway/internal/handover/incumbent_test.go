package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

const testPatience = 30 * time.Second

var testNeighbour = ebpf.Neighbour{Generation: 1, AppIndex: 3}

// fakeGateway is what a takeover and an admin server ask of a gateway.
type fakeGateway struct {
	admin.Control
	report.Source
	draining *report.DrainInfo
	leave    func() error // nil: it works
	off      bool

	incumbent *Incumbent
	server    *admin.Server
	stop      func() // ends what serve has begun

	mu    sync.Mutex // guards everything below
	steps []string
	fail  error
	main  int
}

func (f *fakeGateway) Status() report.Status { return report.Status{Draining: f.draining} }

func (f *fakeGateway) Draining() *report.DrainInfo { return f.draining }

func (f *fakeGateway) Neighbour() (ebpf.Neighbour, error) {
	if f.draining != nil {
		return testNeighbour, ErrDraining
	}
	return testNeighbour, nil
}

func (f *fakeGateway) SetOff(bool) error { return nil }

func (f *fakeGateway) Yield() error { return f.does("yield") }

func (f *fakeGateway) TakeBack() error { return f.does("take back") }

func (f *fakeGateway) Leave(commit func(bool) error, main int) error {
	err := f.does("leave")
	if err == nil && f.leave != nil {
		err = f.leave()
	}
	if err == nil {
		err = commit(f.off)
	}
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.main = main
	}
	return err
}

func (f *fakeGateway) does(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, step)
	return f.fail
}

// breaks has what follows fail; nil: work again.
func (f *fakeGateway) breaks(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// done returns the steps so far.
func (f *fakeGateway) done() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.steps...)
}

// await waits until a takeover is over, and these were its steps.
func (f *fakeGateway) await(t *testing.T, steps ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.incumbent.mu.Lock()
		defer f.incumbent.mu.Unlock()
		return f.incumbent.wake == nil
	}, testPatience, time.Millisecond)
	if steps != nil {
		require.Equal(t, steps, f.done())
	}
}

// place is a configuration with a place of its own.
func place(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	return config.Config{Admin: dir + "/a.sock", StateDir: dir}.WithDefaults()
}

// serve has a gateway answer on the admin socket of a configuration.
func (f *fakeGateway) serve(t *testing.T, cfg config.Config) {
	t.Helper()
	s, err := admin.Listen(cfg, "1.2.3", nil)
	require.NoError(t, err)
	f.server, f.incumbent = s, NewIncumbent(f, slog.New(slog.DiscardHandler))
	f.incumbent.Place, s.Handover = s, f.incumbent.Converse
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx, f, f) }()
	f.stop = sync.OnceFunc(func() {
		stop()
		require.NoError(t, <-over)
	})
	t.Cleanup(f.stop)
	<-s.Told()
}

// begins begins a takeover from the gateway at an admin socket.
func begins(t *testing.T, at string) *talk {
	t.Helper()
	held, n, err := ask(t.Context(), at, message{Step: stepClaim, Version: "2.0.0"}, func(string) {})
	require.NoError(t, err)
	require.Equal(t, testNeighbour, n)
	t.Cleanup(held.close)
	return held
}

// refused asks for what another gateway does not do, and says why.
func refused(t *testing.T, at string, first step, why error) {
	t.Helper()
	_, _, err := ask(t.Context(), at, message{Step: first}, nil)
	require.ErrorIs(t, err, errEnded)
	require.ErrorContains(t, err, why.Error())
}

// to goes on to a place of the conversation.
func (t *talk) to(tb testing.TB, at state) {
	tb.Helper()
	if at == yielded {
		_, err := t.step(tb.Context(), message{Step: stepYield})
		require.NoError(tb, err)
	}
}

// A takeover to its end. No other one begins.
func TestTakeover(t *testing.T) {
	cfg := place(t)
	old := &fakeGateway{off: true}
	old.serve(t, cfg)
	held := begins(t, cfg.Admin)
	require.ErrorIs(t, old.incumbent.Change(nil), ErrUnderWay)
	refused(t, cfg.Admin, stepClaim, ErrUnderWay)
	held.to(t, yielded)
	require.Equal(t, []string{"yield"}, old.done())

	m, err := held.step(t.Context(), message{Step: stepLeave, Main: 4711})
	require.NoError(t, err)
	require.True(t, m.Off)
	<-old.incumbent.left
	held.finish()
	<-old.incumbent.followed
	old.await(t, "yield", "leave")
	require.Equal(t, 4711, old.main)
	refused(t, cfg.Admin+config.DrainingSuffix, stepClaim, ErrDraining)
}

// A takeover that ends before its last step, at whatever place and in whatever way, is lost: the
// gateway takes everything back before it drains, and another takeover can begin.
func TestTakeoverThatIsLost(t *testing.T) {
	errFake := errors.New("map update: no such file")
	next := map[state]step{claimed: stepYield, yielded: stepLeave}
	step := func(t *testing.T, held *talk, by step, why error) {
		_, err := held.step(t.Context(), message{Step: by})
		require.ErrorIs(t, err, errEnded)
		require.ErrorContains(t, err, why.Error())
	}
	for name, ends := range map[string]func(t *testing.T, old *fakeGateway, held *talk, at state){
		"given up": func(_ *testing.T, _ *fakeGateway, held *talk, _ state) { held.close() },
		"out of order": func(t *testing.T, _ *fakeGateway, held *talk, at state) {
			step(t, held, next[claimed+yielded-at], errOrder)
		},
		"a step that fails": func(t *testing.T, old *fakeGateway, held *talk, at state) {
			old.breaks(errFake)
			step(t, held, next[at], errFake)
		},
		"a drain": func(t *testing.T, old *fakeGateway, held *talk, at state) {
			require.NoError(t, old.incumbent.End(func() error { return old.does("drain") }))
			step(t, held, next[at], errToDrain)
		},
	} {
		for _, at := range []state{claimed, yielded} {
			t.Run(fmt.Sprint(name, at), func(t *testing.T) {
				cfg := place(t)
				old := &fakeGateway{}
				old.serve(t, cfg)
				held := begins(t, cfg.Admin)
				held.to(t, at)
				ends(t, old, held, at)
				old.await(t)
				want := map[bool][]string{true: {"yield", "take back"}}[at == yielded]
				switch name {
				case "a drain":
					want = append(want, "drain")
				case "a step that fails":
					want = map[state][]string{claimed: {"yield", "take back"}, yielded: {"yield", "leave", "take back"}}[at]
				}
				require.Equal(t, want, old.done())
				require.NoFileExists(t, cfg.Admin+config.DrainingSuffix)
				old.breaks(nil)
				begins(t, cfg.Admin).to(t, yielded)
			})
		}
	}
}

// What does not begin with a claim is no takeover.
func TestConverseOutOfOrder(t *testing.T) {
	cfg := place(t)
	old := &fakeGateway{}
	old.serve(t, cfg)
	for _, first := range []step{stepYield, stepLeave} {
		refused(t, cfg.Admin, first, errOrder)
	}
	refused(t, cfg.Admin, stepLook, errServes)
	refused(t, cfg.Admin, stepLost, errors.New("no step"))
	require.False(t, old.incumbent.Busy())
}

// A step that is not done in time is not done: the successor that gives up, and the gateway that
// comes to it late, agree on that.
func TestTakeoverThatIsLate(t *testing.T) {
	cfg := place(t)
	gone, late := context.WithCancel(t.Context())
	old := &fakeGateway{}
	old.serve(t, cfg)
	held := begins(t, cfg.Admin)
	held.to(t, yielded)
	old.leave = func() error { // it stands still, and the successor loses patience
		late()
		<-held.ended
		return nil
	}
	_, err := held.step(gone, message{Step: stepLeave})
	require.ErrorIs(t, err, context.Canceled)
	held.close()
	old.await(t, "yield", "leave", "take back")
	require.Zero(t, old.main)
}

// A gateway that has left before its successor loses patience has left.
func TestTakeoverThatIsJustInTime(t *testing.T) {
	for range 20 {
		near, far := pair(t)
		t1, l := newTalk(near, nil), newLine(far)
		ctx, late := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _ = l.hear()
			go late()
			left <- l.say(message{Step: stepLeave})
		}()
		_, err := t1.step(ctx, message{Step: stepLeave})
		require.Equal(t, err == nil, <-left == nil, "both know the same: %v", err)
		t1.close()
		require.NoError(t, far.Close())
	}
}

// pair is a connection.
func pair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	require.NoError(t, err)
	defer l.Close()
	near, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	far, err = l.AcceptUnix()
	require.NoError(t, err)
	return near, far
}

// A successor that hangs has the place. The old gateway takes its connections back at once, and
// that when the other one has ended; no other gateway can start meanwhile, or take over.
func TestTakeoverBySuccessorThatHangs(t *testing.T) {
	cfg := place(t)
	old := &fakeGateway{}
	old.serve(t, cfg)
	held := begins(t, cfg.Admin)
	held.to(t, yielded)
	hung, err := admin.Succeed(cfg, "2.0.0", nil)
	require.NoError(t, err)
	held.close()
	require.Eventually(t, func() bool { return !old.incumbent.Busy() }, testPatience, time.Millisecond)
	require.Equal(t, []string{"yield", "take back"}, old.done())
	_, err = admin.Listen(cfg, "x", nil)
	require.ErrorContains(t, err, "in use by another daemon")
	aside := cfg.Admin + config.DrainingSuffix
	refused(t, aside, stepClaim, ErrUnderWay)
	refused(t, aside, stepLook, errServes)
	require.NoError(t, old.incumbent.Change(func() error { return nil }), "a reload waits for no other process")

	require.NoError(t, hung.Close())
	old.await(t, "yield", "take back")
	require.NoFileExists(t, aside)
	begins(t, cfg.Admin).close()
}

// The end of a gateway ends a conversation at any place without a word: the successor goes on alone.
func TestIncumbentEnds(t *testing.T) {
	for _, at := range []state{claimed, yielded} {
		cfg := place(t)
		old := &fakeGateway{}
		old.serve(t, cfg)
		held := begins(t, cfg.Admin)
		held.to(t, at)
		old.stop()
		_, err := held.step(t.Context(), message{Step: stepLeave})
		require.ErrorIs(t, err, errDied)
		require.NotContains(t, old.done(), "take back")
	}
}

// keptPlace is one that a successor keeps for a while.
type keptPlace struct{ times int }

func (*keptPlace) StepAside() error { return nil }

func (p *keptPlace) StepBack() error {
	if p.times--; p.times >= 0 {
		return errors.New("locked")
	}
	return nil
}

// A conversation that does not begin in time, and a successor that hangs at any place, end it; what
// the successor keeps is waited for.
func TestTakeoverDeadlines(t *testing.T) {
	for n, want := range [...]struct {
		steps []string
		after time.Duration
	}{
		{nil, firstPatience},
		{nil, takeoverLimit},
		{[]string{"yield", "take back"}, takeoverLimit + 3*backEvery},
	} {
		synctest.Test(t, func(t *testing.T) {
			old := &fakeGateway{}
			old.incumbent = NewIncumbent(old, slog.New(slog.DiscardHandler))
			old.incumbent.Place = &keptPlace{3}
			near, far := net.Pipe()
			defer near.Close()
			begin, over := time.Now(), time.Duration(0)
			go func() {
				old.incumbent.Converse(t.Context(), far)
				over = time.Since(begin)
			}()
			l, word := newLine(near), ""
			for _, by := range []step{stepClaim, stepYield}[:n] {
				require.NoError(t, l.say(message{Step: by}))
				m, err := l.hear()
				require.NoError(t, err)
				require.Equal(t, by, m.Step)
			}
			m, err := l.hear()
			require.NoError(t, err)
			if word = m.Error; n > 0 {
				require.Equal(t, errLate.Error(), word)
			}
			_, err = l.hear()
			require.ErrorIs(t, err, errGone)
			synctest.Wait()
			require.Equal(t, want.after, over)
			require.Equal(t, want.steps, old.done())
			require.False(t, old.incumbent.Busy())
		})
	}
}

// TestDrainer: it is over with the last connection, or at the earliest deadline.
func TestDrainer(t *testing.T) {
	now := time.Unix(1000, 0)
	d := NewDrainer()
	require.False(t, d.Draining())
	require.Nil(t, d.Info())
	d.Begin(3, now, now.Add(time.Minute))
	require.True(t, d.Draining())
	require.Equal(t, 60.0, d.Info().RemainingSeconds)
	require.False(t, d.note(2, 0, now.Add(time.Second)))
	require.False(t, d.note(0, 1, now.Add(time.Second)), "a socket lingers")
	require.True(t, d.note(0, 0, now.Add(time.Second)))
	require.True(t, d.Info().Done)

	d.Begin(0, now, now.Add(time.Hour))
	require.False(t, d.note(1, 0, now.Add(59*time.Second)))
	require.True(t, d.note(1, 0, now.Add(time.Minute)), "the earlier deadline holds")
	d.Begin(0, now, now.Add(time.Second))
	require.True(t, d.note(1, 0, now.Add(time.Second)))
	require.Equal(t, 1, d.Info().Flows)
	d.Finish()
	<-d.Finished()
}

// TestDrainerAwaits: it looks until nothing is left.
func TestDrainerAwaits(t *testing.T) {
	d := NewDrainer()
	d.Begin(1, time.Now(), time.Now().Add(time.Hour))
	left := 3
	require.True(t, d.Await(t.Context(), func() (int, int, time.Time) { left--; return left, 0, time.Now() }))
	require.Zero(t, left)
}
