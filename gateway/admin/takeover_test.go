package admin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/claim"
	"github.com/smcgw/smcgw/gateway/report"
)

// testNeighbour is a datapath that could be.
var testNeighbour = ebpf.Neighbour{Generation: 1, AppIndex: 3}

const testPatience = 30 * time.Second

func startTakenOver(t *testing.T) *testAdmin {
	t.Helper()
	return startAdmin(t, func(c *config.Config) { c.Metrics.Listen = freeAddr(t) })
}

// startYielded is a gateway that has yielded to a successor, which has yet to end the takeover.
func startYielded(t *testing.T) (a *testAdmin, held *Takeover) {
	t.Helper()
	a = startTakenOver(t)
	a.ctl.neighbour = testNeighbour
	held, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	require.NoError(t, held.Yield(t.Context()))
	return a, held
}

func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// A takeover to its end: the socket answers all the time, the metrics port goes
// over, and the old server is found beside the new one until it ends.
func TestTakeoverOfTheAdminSocket(t *testing.T) {
	a := startTakenOver(t)
	a.ctl.neighbour = testNeighbour
	held, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	defer held.Close()
	_, err = a.server.Change()
	require.ErrorIs(t, err, claim.ErrUnderWay)
	require.Equal(t, testNeighbour, held.Offer.Neighbour)
	_, err = a.client.TakeOver(t.Context())
	require.ErrorIs(t, err, errRefused)
	require.ErrorContains(t, err, claim.ErrUnderWay.Error())

	require.NoError(t, held.Yield(t.Context()))
	require.Equal(t, []string{"yield"}, a.ctl.taken())
	_, err = a.client.Status(t.Context())
	require.NoError(t, err, "the old one answers until there is a new one")
	b, err := listen(a.cfg, "2.0.0", nil, true)
	require.NoError(t, err)
	serving := serveAdmin(t, b, &fakeControl{})
	v, err := a.client.Version(t.Context())
	require.NoError(t, err)
	require.Equal(t, "2.0.0", v.Version)
	off, err := held.Leave(t.Context(), 7*time.Second, 0)
	require.NoError(t, err)
	require.False(t, off)
	require.Equal(t, []time.Duration{7 * time.Second}, a.ctl.drained)
	<-held.Done
	st, err := a.client.Status(t.Context())
	require.NoError(t, err)
	require.NotNil(t, st.Predecessor)
	require.Equal(t, 3, st.Predecessor.Flows)
	_, err = NewClient(a.cfg.Admin + ".old").TakeOver(t.Context())
	require.ErrorIs(t, err, errRefused, "one that drains is nobody's to take over")
	sooner, cancel := context.WithCancel(t.Context())
	_, err = NewClient(a.cfg.Admin+".old").Drain(sooner, time.Second, func(report.DrainInfo) { cancel() })
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []time.Duration{7 * time.Second, time.Second}, a.ctl.drained, "one that drains can be told to end sooner")
	require.ErrorContains(t, b.besideOld(errSuccessorLate), "a gateway that drains is still there (connections: 3, for 5s at most); "+
		"to reset them now: smcgw drain --timeout 1s --socket "+a.cfg.Admin+".old")

	a.beside = true
	a.stop()
	_, err = a.client.Status(t.Context())
	require.NoError(t, err, "the socket of the new one stays")
	require.NoFileExists(t, a.cfg.Admin+".old")
	serving()
	names, err := os.ReadDir(filepath.Dir(a.cfg.Admin))
	require.NoError(t, err)
	require.Len(t, names, 1, "the lock")
	require.Equal(t, []string{"yield"}, a.ctl.taken())
}

// serveAdmin serves until the function it returns is called.
func serveAdmin(t *testing.T, s *Server, ctl *fakeControl) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ctl, ctl) }()
	require.Eventually(t, func() bool { return len(ctl.switched()) == 1 }, testPatience, time.Millisecond)
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// A gateway that comes to leave after its successor has lost patience goes on: it has no other
// sign of that, since the end of a connection comes after what was sent. The successor waits
// for what it says.
func TestTakeoverThatIsLate(t *testing.T) {
	a, held := startYielded(t)
	held.lease = 0
	_, err := held.Leave(t.Context(), time.Second, 0)
	require.ErrorContains(t, err, errLate.Error())
	held.Close()
	require.Eventually(t, func() bool { return !a.server.succession.UnderWay() }, testPatience, time.Millisecond)
	require.Equal(t, []string{"yield", "take back"}, a.ctl.taken())
	require.Empty(t, a.ctl.drained)
}

// A drain ends a takeover that is under way, and begins after it. The successor is told: it is
// not to go on as if the other gateway had died.
func TestDrainWithinATakeover(t *testing.T) {
	for _, yield := range []bool{false, true} {
		a := startTakenOver(t)
		a.ctl.neighbour = testNeighbour
		held, err := a.client.TakeOver(t.Context())
		require.NoError(t, err)
		defer held.Close()
		if yield {
			require.NoError(t, held.Yield(t.Context()))
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err = a.client.Drain(ctx, time.Second, func(report.DrainInfo) { cancel() })
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []time.Duration{time.Second}, a.ctl.drained)
		require.ErrorIs(t, held.Ended(t.Context()), ErrEnded)
		_, err = held.Leave(t.Context(), time.Second, 0)
		require.Error(t, err)
		require.Equal(t, yield, len(a.ctl.taken()) == 2, "what was yielded is taken back")
		require.False(t, a.server.succession.Busy())
		a.stop()
	}
}

// A gateway tells what it is under the claim: it stays so.
func TestTakeoverIsToldUnderItsClaim(t *testing.T) {
	a := startTakenOver(t)
	a.ctl.neighbour = testNeighbour
	changed := make(chan error, 1)
	a.ctl.look = func() {
		go func() {
			_, err := a.server.Change()
			changed <- err
		}()
		select {
		case err := <-changed:
			changed <- err
		case <-time.After(50 * time.Millisecond): // it waits for the claim
		}
	}
	held, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	defer held.Close()
	require.ErrorIs(t, <-changed, claim.ErrUnderWay)
}

// The kill switch goes over with the last step: it may be in no file.
func TestTakeoverHandsTheKillSwitchOver(t *testing.T) {
	a, held := startYielded(t)
	defer held.Close()
	require.NoError(t, a.ctl.SetOff(true))
	off, err := held.Leave(t.Context(), time.Second, 0)
	require.NoError(t, err)
	require.True(t, off)
}

// A successor that goes at any step leaves everything as it was.
func TestTakeoverThatIsGivenUp(t *testing.T) {
	for _, yield := range []bool{false, true} {
		a := startTakenOver(t)
		a.ctl.neighbour = testNeighbour
		held, err := a.client.TakeOver(t.Context())
		require.NoError(t, err)
		if yield {
			require.NoError(t, held.Yield(t.Context()))
			_, err := net.Dial("tcp", a.cfg.Metrics.Listen)
			require.Error(t, err)
			require.FileExists(t, a.cfg.Admin+".old")
		}
		held.Close()
		require.Eventually(t, func() bool { return !a.server.succession.Busy() }, testPatience, time.Millisecond)
		require.ErrorContains(t, held.Yield(t.Context()), claim.ErrNotSuccessor.Error())
		want := []string(nil)
		if yield {
			want = []string{"yield", "take back"}
		}
		require.Equal(t, want, a.ctl.taken())
		require.NoFileExists(t, a.cfg.Admin+".old")
		_, err = a.client.Status(t.Context())
		require.NoError(t, err)
		c, err := net.Dial("tcp", a.cfg.Metrics.Listen)
		require.NoError(t, err)
		_ = c.Close()
		_, err = Listen(a.cfg, "x", nil)
		require.ErrorIs(t, err, errAdminInUse, "the lock is back")
		again, err := a.client.TakeOver(t.Context())
		require.NoError(t, err)
		again.Close()
		a.stop()
	}
}

// A successor that died when its own socket was there already: the old one's takes
// its place again.
func TestTakeoverIsTakenBackFromASocketOfTheDead(t *testing.T) {
	a, held := startYielded(t)
	b, err := listenAdminSocket(a.cfg.Admin, true)
	require.NoError(t, err)
	require.NoError(t, b.UnixListener.Close()) // as the kernel does
	require.NoError(t, b.lock.Close())
	held.Close()
	require.Eventually(t, func() bool { return !a.server.succession.Busy() }, testPatience, time.Millisecond)
	v, err := a.client.Version(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1.2.3", v.Version)
	require.NoFileExists(t, a.cfg.Admin+".old")
}

// What cannot be yielded is taken back, and the takeover can be tried again.
func TestTakeoverThatCannotYield(t *testing.T) {
	a := startTakenOver(t)
	a.ctl.neighbour = testNeighbour
	held, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	a.ctl.mu.Lock()
	a.ctl.fail = errFake
	a.ctl.mu.Unlock()
	require.ErrorContains(t, held.Yield(t.Context()), errFake.Error())
	require.Equal(t, []string{"yield", "take back"}, a.ctl.taken())
	a.ctl.mu.Lock()
	a.ctl.fail = nil
	a.ctl.mu.Unlock()
	require.NoError(t, held.Yield(t.Context()))
	held.Close()
}

// A drain is told about until it is over, also when it lasts.
func TestAdminDrain(t *testing.T) {
	a := startAdmin(t, nil)
	var told []report.DrainInfo
	progress := make(chan struct{}, 16)
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Drain(t.Context(), 90*time.Second, func(i report.DrainInfo) {
			told = append(told, i)
			progress <- struct{}{}
		})
		done <- err
	}()
	<-progress
	st, err := a.client.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, st.Draining.Flows)
	a.ctl.endDrain(2)
	require.NoError(t, <-done)
	require.Equal(t, []time.Duration{90 * time.Second}, a.ctl.drained)
	require.False(t, told[0].Done)
	last := told[len(told)-1]
	require.True(t, last.Done)
	require.Equal(t, 2, last.Flows)
	for _, bad := range []time.Duration{-time.Second, 8 * 24 * time.Hour} {
		_, err := a.client.Drain(t.Context(), bad, func(report.DrainInfo) {})
		require.ErrorContains(t, err, "timeout")
	}
}

// A process that dies breaks its connections before it gives up its locks.
func TestTheLockOfTheDeadIsAwaited(t *testing.T) {
	die := func(path string) {
		dying, err := lockFile(path + ".lock")
		require.NoError(t, err)
		time.AfterFunc(50*time.Millisecond, func() { _ = dying.Close() })
	}
	for _, successor := range []bool{false, true} {
		path := t.TempDir() + "/s"
		die(path)
		s, err := listenAdminSocket(path, successor)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		die(path)
		lock, err := cleanupLock(path)
		require.NoError(t, err)
		require.NoError(t, lock.Close())
	}
}

// A successor that hangs has the lock, the socket's place and the metrics port. The old
// gateway takes them when that has ended, and no other gateway can start meanwhile.
func TestTakeoverIsTakenBackFromASuccessorThatHangs(t *testing.T) {
	a, held := startYielded(t)
	hung, err := Succeed(a.cfg, "2.0.0", nil)
	require.NoError(t, err)
	held.Close()
	require.Eventually(t, func() bool { return !a.server.succession.Busy() }, testPatience, time.Millisecond)
	require.Equal(t, []string{"yield", "take back"}, a.ctl.taken(), "connections are its own")
	aside := NewClient(a.cfg.Admin + config.DrainingSuffix)
	defer aside.Close()
	_, err = aside.Status(t.Context())
	require.NoError(t, err)
	_, err = Listen(a.cfg, "x", nil)
	require.ErrorIs(t, err, errAdminInUse)

	require.NoError(t, hung.Close())
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", a.cfg.Metrics.Listen)
		if err == nil {
			_ = c.Close()
		}
		return err == nil && a.server.socket.inPlace()
	}, testPatience, time.Millisecond)
	v, err := a.client.Version(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1.2.3", v.Version)
	require.NoFileExists(t, a.cfg.Admin+config.DrainingSuffix)
	_, err = Listen(a.cfg, "x", nil)
	require.ErrorIs(t, err, errAdminInUse, "the lock is back")
	_, err = a.client.Reload(t.Context(), false)
	require.NoError(t, err)
	again, err := a.client.TakeOver(t.Context())
	require.NoError(t, err)
	again.Close()
}

// Connections are taken back at once, and the gateway answers, while a successor that goes
// still keeps the place of the socket.
func TestTakeoverIsTakenBackBeforeTheSocket(t *testing.T) {
	a, held := startYielded(t)
	hung, err := listenAdminSocket(a.cfg.Admin, true)
	require.NoError(t, err)
	told, freed := make(chan struct{}), make(chan struct{})
	a.ctl.mu.Lock()
	a.ctl.back = func() {
		close(told)
		<-freed
	}
	a.ctl.mu.Unlock()
	held.Close()
	<-told
	_, err = a.server.Change()
	require.ErrorIs(t, err, claim.ErrUnderWay)
	a.server.socket.mu.Lock() // as while the lock is waited for
	aside := NewClient(a.cfg.Admin + config.DrainingSuffix)
	defer aside.Close()
	_, err = aside.Status(t.Context())
	a.server.socket.mu.Unlock()
	require.NoError(t, err)
	require.False(t, a.server.socket.inPlace())
	require.NoError(t, hung.Close())
	close(freed)
	require.Eventually(t, func() bool { return !a.server.succession.Busy() }, testPatience, time.Millisecond)
	require.True(t, a.server.socket.inPlace())
}

// A gateway that stops while a successor that hangs keeps its place leaves that alone.
func TestStopBesideASuccessorThatHangs(t *testing.T) {
	a, held := startYielded(t)
	hung, err := listenAdminSocket(a.cfg.Admin, true)
	require.NoError(t, err)
	held.Close()
	require.Eventually(t, func() bool { return !a.server.succession.Busy() }, testPatience, time.Millisecond)
	a.stop()
	require.NoFileExists(t, a.cfg.Admin+config.DrainingSuffix)
	require.FileExists(t, a.cfg.Admin)
	require.NoError(t, hung.Close())
}
