package carrier

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
)

func hwOf(s *side) Provider { return s.hw }

// newCarried makes two sides and a connection that carries between them. s is the
// first side.
func newCarried(t *testing.T) (sides [2]*side, s *side, c *linked) {
	t.Helper()
	sides = newSides(t, 100)
	return sides, sides[0], carry(t, sides)
}

// carry makes a connection that carries, with bytes under way that the server has not
// consumed.
func carry(t *testing.T, sides [2]*side) *linked {
	t.Helper()
	c := meet(t, sides, hwOf)
	c.prove(t, sides)
	for i, s := range sides {
		s.carries(c.link[i])
	}
	var err error
	sides[0].on(func() {
		c.link[0].Proved()
		err = c.link[0].EP.Commit(copy(c.link[0].EP.WriteSpan(), "kept"))
	})
	require.NoError(t, err)
	return c
}

// device is what operators are told of the only adapter.
func (s *side) device(t *testing.T) report.DeviceInfo {
	list := s.hw.Devices()
	require.Len(t, list, 1)
	return list[0]
}

// offer makes a link and closes it, and returns why it cannot.
func (s *side) offer(to netip.Addr) error {
	l, _, err := s.hw.Offer(s.request(&fakeUser{}, to))
	if err == nil {
		s.on(l.Close)
	}
	return err
}

// TestHWKeepsShardsFree: no shard makes, connects or closes anything of an adapter, and
// connections take pairs that were made before.
func TestHWKeepsShardsFree(t *testing.T) {
	sides := newSides(t, 100)
	for range 10 {
		c := meet(t, sides, hwOf)
		_, err := sides[0].prove(c.link[0], c.to)
		require.NoError(t, err)
		eventually(t, func() bool { return sides[0].device(t).Use["pooled"] > 0 }, "a pair waits for the next")
		c.close(sides)
	}
	carry(t, sides)
	for _, s := range sides {
		_, err := s.hw.Withdraw("rxe0")
		require.NoError(t, err)
		calls, _, onShard := s.host.counted()
		require.NotZero(t, calls)
		require.Empty(t, onShard, "a shard waits for an adapter")
	}
}

// TestHWMakesFewAtATime: connections that begin together wait for each other at the adapter,
// not at its threads.
func TestHWMakesFewAtATime(t *testing.T) {
	sides := newSides(t, 100)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			c := meet(t, sides, hwOf)
			_, err := sides[0].prove(c.link[0], c.to)
			assert.NoError(t, err)
			c.close(sides)
		})
	}
	all.Wait()
	for _, s := range sides {
		_, err := s.hw.Withdraw("rxe0")
		require.NoError(t, err)
		_, most, _ := s.host.counted()
		require.LessOrEqual(t, most, makersMost+2, "and a completion queue, and the reaper")
	}
}

// TestHWLeavesShardsTime: a hundred connections a second delay what else a shard does by a
// millisecond at most, nine times in ten, beside a shard that has none. What the machine
// does to one of both it may not do to the other: one second in a minute has to show it, and
// where that shard is late by more than a millisecond itself, this one may be by twice as much.
func TestHWLeavesShardsTime(t *testing.T) {
	s := newSides(t, 100)[0]
	s.Config.Limits.HWFlows = 1000 // those before wait to be closed
	idle, err := loop.New(1, s.Log)
	require.NoError(t, err)
	idle.Start()
	defer func() {
		idle.Halt()
		idle.Detach()
		idle.CloseFDs()
	}()
	require.Eventually(t, func() bool {
		busy, rest := late(t, s, idle)
		t.Logf("nine in ten are late by at most %v, and %v without connections", busy, rest)
		return busy-rest <= max(time.Millisecond, rest)
	}, time.Minute, time.Millisecond)
	_, _, onShard := s.host.counted()
	require.Empty(t, onShard, "a shard waits for an adapter")
}

// late has a hundred connections begin and end in a second, and returns how late a shard
// takes nine in ten of what is posted to it, and the same of one without connections.
func late(t *testing.T, s *side, idle *loop.Shard) (busy, rest time.Duration) {
	begins, ends := time.NewTicker(10*time.Millisecond), time.After(time.Second)
	defer begins.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for range 100 {
			<-begins.C
			all.Go(func() { assert.NoError(t, s.offer(addrB)) })
		}
	})
	var waits [2][]time.Duration
	for {
		select {
		case <-ends:
			for i := range waits {
				slices.Sort(waits[i])
			}
			return waits[0][len(waits[0])*9/10], waits[1][len(waits[1])*9/10]
		case <-time.After(time.Millisecond):
		}
		for i, shard := range []*loop.Shard{s.Shards[0], idle} {
			posted := time.Now()
			shard.Call(func() { waits[i] = append(waits[i], time.Since(posted)) })
		}
	}
}

// TestHWPoolsServe: after the first connection with a peer there is a pair for the next.
func TestHWPoolsServe(t *testing.T) {
	sides := newSides(t, 100)
	for range 20 {
		require.NoError(t, sides[0].offer(sides[1].addr))
		eventually(t, func() bool { return sides[0].device(t).Use["pooled"] > 0 }, "a pair waits")
	}
	st := sides[0].device(t).Counters
	require.EqualValues(t, 1, st["pool_misses"])
	require.EqualValues(t, 19, st["pool_hits"])
	sides[0].hw.forgetIdle(time.Now().Add(poolIdle))
	eventually(t, func() bool { return sides[0].Pool.Stats().Used == 0 }, "no connection has come for long")
	eventually(t, func() bool {
		sides[0].hw.forgetIdle(time.Now().Add(2 * idlePeers))
		return sides[0].device(t).Use["peers"] == 0
	}, "the peer is forgotten")
	eventually(t, func() bool { return sides[0].Pool.Stats().Reserved == 0 }, "and what it had is closed")
}

// TestHWAdmission: the queue pairs of a completion queue never have more work requests
// than it holds, room that was left is used again, and beyond limits.hw_flows there is
// none.
func TestHWAdmission(t *testing.T) {
	s := newSides(t, 100)[0]
	for range 3 {
		var links []*Link
		for range 40 {
			l, _, err := s.hw.Offer(s.request(&fakeUser{}, addrB))
			require.NoError(t, err)
			links = append(links, l)
		}
		require.ErrorIs(t, s.offer(addrB), ErrFull)
		for _, l := range links {
			s.on(l.Close)
		}
		eventually(t, func() bool { return s.device(t).Use["qps"] == 0 }, "the reaper has closed them")
	}
	use := s.host.last().most()
	require.LessOrEqual(t, len(use), 40/2+poolMost, "completion queues")
	for _, u := range use {
		require.LessOrEqual(t, u.most, u.depth)
		require.LessOrEqual(t, u.depth, s.host.maxCQE)
	}
	require.EqualValues(t, 3, s.device(t).Counters["refused"])
}

// TestHWLaneWaitsForATurn: the room of a queue pair that was closed is free when the
// shard has taken the completions that it left.
func TestHWLaneWaitsForATurn(t *testing.T) {
	s := newSides(t, 100)[0]
	require.NoError(t, s.offer(addrB))
	a := s.hw.open()[0]
	ln := a.lanes.All()[0]
	eventually(t, func() bool { return s.device(t).Use["pooled"] == 1 && ln.Used() == linkNeed() }, "one pair waits")
	s.on(func() {
		ln.Leave(s.Shards[0], linkNeed())
		require.Equal(t, linkNeed(), ln.Used())
	})
	eventually(t, func() bool { return ln.Used() == 0 }, "two turns later")
	again, err := a.lanes.Admit(s.Shards[0], linkNeed()) // the pair that waits has it
	require.NoError(t, err)
	require.Same(t, ln, again)
}

// TestHWSendsToThePeerOnly: an offer that names a third address is ignored, and an address
// without an adapter is no failure.
func TestHWSendsToThePeerOnly(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[1]
	o := negotiate.CarrierOffer{Kind: negotiate.CarrierHW}
	o.RoCE.GID = verbs.GIDOf(netip.MustParseAddr("127.77.1.9"))
	_, _, err := s.answer(s.hw, s.request(&fakeUser{}, sides[0].addr), o, &negotiate.Proposal{})
	require.ErrorIs(t, err, ErrNotHere)
	l, mine, err := s.hw.Offer(s.request(&fakeUser{}, sides[0].addr))
	require.NoError(t, err)
	require.Equal(t, negotiate.CarrierHW, mine.Kind)
	require.Equal(t, verbs.GIDOf(s.addr), verbs.GID(mine.RoCE.GID))
	require.Zero(t, mine.RoCE.PKey)
	require.ErrorIs(t, s.connect(l, o), ErrNotHere)
	s.on(l.Close)
	r := s.request(&fakeUser{}, sides[0].addr)
	r.Local = netip.MustParseAddr("127.77.1.8")
	_, _, err = s.hw.Offer(r)
	require.ErrorIs(t, err, ErrNotHere)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWLinkEndsWhileItIsConnected: the queue pair is closed after that.
func TestHWLinkEndsWhileItIsConnected(t *testing.T) {
	sides := newSides(t, 100)
	c := meet(t, sides, hwOf)
	done := make(chan error, 1)
	sides[0].on(func() {
		c.link[0].Connect(c.to, func(err error) { done <- err })
		c.link[0].Close()
	})
	require.ErrorIs(t, <-done, ErrClosed)
	sides[1].on(c.link[1].Close)
	for _, s := range sides {
		eventually(t, func() bool { return s.isEmpty() && s.device(t).Use["qps"] == 0 }, "nothing is left")
	}
}

// TestHWDeviceFails: connections leave it, it is closed although they have bytes to send
// again, and used again when it comes back.
func TestHWDeviceFails(t *testing.T) {
	for _, event := range []verbs.EventType{verbs.EventDeviceFatal, verbs.EventCQErr} {
		t.Run(event.String(), func(t *testing.T) {
			sides, s, c := newCarried(t)
			first := s.host.last()
			s.host.mu.Lock()
			s.host.refused = verbs.ErrNoMemory
			s.host.mu.Unlock()
			first.async.Notify(verbs.AsyncEvent{Type: event})
			eventually(t, func() bool {
				s.host.mu.Lock()
				defer s.host.mu.Unlock()
				return first.closed
			}, "the device is closed")
			require.Equal(t, 1, s.gone())
			s.on(func() { require.Equal(t, "kept", string(c.link[0].EP.Tail(0))) })
			require.Zero(t, s.Pool.Stats().Used, "no memory of the device is in use")
			info := s.device(t)
			require.Equal(t, []any{report.DeviceFailed, event.String(), "rxe0/1"}, []any{info.State, info.Error, info.Name})
			require.ErrorIs(t, s.offer(sides[1].addr), ErrNoDevice, "a failure of this host")
			s.host.mu.Lock()
			s.host.refused = nil
			s.host.mu.Unlock()
			s.host.has("rxe0/1")
			eventually(t, func() bool { return s.device(t).State == report.DeviceActive }, "it comes back")
			require.NoError(t, s.offer(sides[1].addr))
			for _, sent := range s.returns {
				sent()
			}
			sides[1].on(c.link[1].Close)
			eventually(t, s.isEmpty, "the memory is back")
		})
	}
}

// TestHWPortGoesDown: nothing new is made of it, and its connections leave it if it
// stays.
func TestHWPortGoesDown(t *testing.T) {
	sides, s, c := newCarried(t)
	state := func(to verbs.PortState) func(*verbs.PortAttr) { return func(p *verbs.PortAttr) { p.State = to } }
	dev, down := s.host.last(), time.Now()
	dev.change(verbs.EventPortErr, state(verbs.PortDown))
	eventually(t, func() bool { return s.device(t).State == report.DeviceDown }, "operators see it")
	require.ErrorIs(t, s.offer(sides[1].addr), ErrNoDevice)
	eventually(t, func() bool { return s.gone() == 1 }, "a second later")
	require.GreaterOrEqual(t, time.Since(down), portPatience, "not at once")
	dev.change(verbs.EventPortActive, state(verbs.PortActive))
	eventually(t, func() bool { return s.offer(sides[1].addr) == nil }, "it is used again")
	require.Same(t, dev, s.host.last(), "it was not opened again")
	s.returns[0]()
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWAddressGoes: the connections of an address that the adapter does not have any more
// leave it, no others.
func TestHWAddressGoes(t *testing.T) {
	sides, s, c := newCarried(t)
	dev := s.host.last()
	var gid verbs.GIDEntry
	dev.change(verbs.EventGIDChange, func(p *verbs.PortAttr) { p.GIDs[0] = verbs.GIDEntry{} })
	time.Sleep(50 * time.Millisecond)
	require.Zero(t, s.gone(), "another entry")
	dev.change(verbs.EventGIDChange, func(p *verbs.PortAttr) { gid, p.GIDs[3] = p.GIDs[3], verbs.GIDEntry{} })
	eventually(t, func() bool { return s.gone() == 1 }, "its entry")
	require.ErrorIs(t, s.offer(sides[1].addr), ErrNotHere)
	dev.change(verbs.EventGIDChange, func(p *verbs.PortAttr) { p.GIDs[3] = gid })
	eventually(t, func() bool { return s.offer(sides[1].addr) == nil }, "the address is back")
	s.returns[0]()
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWQueuePairFails: its connection hears of it although nothing of it completes.
func TestHWQueuePairFails(t *testing.T) {
	for _, event := range []verbs.EventType{verbs.EventQPFatal, verbs.EventQPAccessErr, verbs.EventQPReqErr} {
		sides := newSides(t, 100)
		c := carry(t, sides)
		sides[0].host.last().async.Notify(verbs.AsyncEvent{Type: event, QP: c.link[0].QP})
		eventually(t, func() bool { return c.user[0].broken.Load() > 0 }, "the user hears of it")
		require.Zero(t, c.user[0].violated.Load(), "an adapter does not tell who it was")
		c.close(sides)
	}
}

// TestHWIsWithdrawn: an adapter that an operator wants stays closed until it has been
// away, or until its return is asked for.
func TestHWIsWithdrawn(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[0]
	withdraw := func() {
		n, err := s.hw.Withdraw("rxe0")
		require.NoError(t, err)
		require.Zero(t, n)
		require.True(t, s.host.last().closed)
		s.host.has("rxe0/1")
		s.host.has("rxe0/1") // the first look is over
		require.Equal(t, report.DeviceDown, s.device(t).State)
		require.ErrorIs(t, s.offer(sides[1].addr), ErrNoDevice)
	}
	active := func() bool { return s.device(t).State == report.DeviceActive }
	withdraw()
	s.host.has()
	eventually(t, func() bool { return s.device(t).State == report.DeviceAbsent }, "the driver is unloaded")
	s.host.has("rxe0/1")
	eventually(t, active, "it has been away")
	withdraw()
	s.hw.Return()
	s.host.has("rxe0/1")
	eventually(t, active, "it may return")
	_, err := s.hw.Withdraw("mlx5_0")
	require.ErrorIs(t, err, ErrNoDevice)
}

// TestHWNamesMemlock: where the process may not lock memory, operators are told so.
func TestHWNamesMemlock(t *testing.T) {
	s := newSides(t, 100)[0]
	s.host.mu.Lock()
	s.host.opened[0].noMem = fmt.Errorf("%w: %w", verbs.ErrNoMemory, hw.ErrMemlock)
	s.host.mu.Unlock()
	err := s.offer(addrB)
	require.ErrorIs(t, err, hw.ErrMemlock)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	info := s.device(t)
	require.Equal(t, report.DeviceFailed, info.State)
	require.Contains(t, info.Error, "RLIMIT_MEMLOCK")
}

// TestHWDatagrams: they have room of their own on an adapter, and end before it is closed: also what is being made
// while it goes.
func TestHWDatagrams(t *testing.T) {
	sides := newSides(t, 100)
	s := sides[0]
	need := linkNeed() / 2
	at, err := s.hw.DatagramsAt(s.addr, sides[1].addr)
	require.NoError(t, err)
	require.EqualValues(t, 3, at.GID)
	one, leaveOne, err := at.Hold(s.Shards[0], need)
	require.NoError(t, err)
	two, leaveTwo, err := at.Hold(s.Shards[0], need)
	require.NoError(t, err)
	require.Equal(t, one, two)
	used := func() int { return s.hw.open()[0].lanes.All()[0].Used() }
	require.Equal(t, 2*need, used())
	leaveTwo()
	leaveTwo()
	eventually(t, func() bool { return used() == need }, "there is room again")
	_, err = s.hw.DatagramsAt(netip.MustParseAddr("127.77.1.8"), sides[1].addr)
	require.ErrorIs(t, err, ErrNotHere)

	var told []verbs.Device
	var pd verbs.PD
	s.Withdrawn = func(dev verbs.Device) {
		switch told = append(told, dev); len(told) {
		case 3: // the keeper goes on meanwhile
			var err error
			pd, err = at.Device.AllocPD()
			require.NoError(t, err)
		case 5:
			require.NoError(t, pd.Close())
			leaveOne()
		}
		_, _, err := at.Hold(s.Shards[0], need)
		require.ErrorIs(t, err, ErrYielded, "nothing new")
	}
	dev := s.host.last()
	_, err = s.hw.Withdraw("rxe0/1")
	require.NoError(t, err)
	require.Equal(t, at.Device, told[0])
	require.Len(t, told, 5, "it was busy until then")
	require.True(t, dev.isClosed())
	_, err = s.hw.DatagramsAt(s.addr, sides[1].addr)
	require.ErrorIs(t, err, ErrNoDevice)
	_, _, err = at.Hold(s.Shards[0], need)
	require.ErrorIs(t, err, ErrYielded)
}

// An adapter that is being left is listed once: metrics have a series of each name.
func TestHWListedOnceWhileLeft(t *testing.T) {
	s := newSides(t, 100)[0]
	over := make(chan error, 1)
	go func() { _, err := s.hw.Withdraw("rxe0"); over <- err }()
	for {
		names := map[string]int{}
		for _, d := range s.hw.Devices() {
			names[d.Name]++
			require.Equal(t, 1, names[d.Name], d.Name)
		}
		select {
		case err := <-over:
			require.NoError(t, err)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestHWPairThatIsNotLetGo: a pair in advance that the adapter does not let go keeps its room
// on the lane: its completions may still come.
func TestHWPairThatIsNotLetGo(t *testing.T) {
	s := newSides(t, 100)[0]
	require.NoError(t, s.offer(addrB))
	a, dev := s.hw.open()[0], s.host.last()
	ln := a.lanes.All()[0]
	eventually(t, func() bool { return s.device(t).Use["pooled"] == 1 && ln.Used() == linkNeed() }, "one pair waits")
	a.mu.Lock()
	made := a.peers[addrB].pools[0].ready[0]
	a.mu.Unlock()
	letGo := func(err error) {
		s.host.mu.Lock()
		defer s.host.mu.Unlock()
		dev.stuck = err
	}
	letGo(verbs.ErrBusy)
	a.drainPools(time.Time{}, true)
	done := make(chan struct{})
	a.reaper.Put(func() { close(done) })
	<-done
	for range 5 { // room that was left is free two turns later
		s.on(func() {})
	}
	require.Equal(t, linkNeed(), ln.Used())
	letGo(nil)
	require.NoError(t, made.close())
	ln.Leave(s.Shards[0], linkNeed())
}

// TestHWWithoutReads: links need no READs of the adapter, which it may not have.
func TestHWWithoutReads(t *testing.T) {
	sides := newSides(t, 100)
	for _, s := range sides {
		dev := s.host.last()
		s.host.mu.Lock()
		dev.reads = 0
		s.host.mu.Unlock()
	}
	carry(t, sides).close(sides)
}

// TestHWSuitable: queues of an adapter have room for a link.
func TestHWSuitable(t *testing.T) {
	h := &Hardware{layer: verbs.LinkLayerEthernet}
	port := verbs.PortAttr{LinkLayer: verbs.LinkLayerEthernet}
	depth := max(linkCap().MaxSendWR, linkCap().MaxRecvWR)
	require.NoError(t, h.suitable(verbs.DeviceAttr{MaxCQE: linkNeed(), MaxQPWR: depth}, port))
	require.ErrorIs(t, h.suitable(verbs.DeviceAttr{MaxCQE: linkNeed(), MaxQPWR: depth - 1}, port), verbs.ErrNotSupported)
	require.ErrorIs(t, h.suitable(verbs.DeviceAttr{MaxCQE: linkNeed() - 1, MaxQPWR: depth}, port), verbs.ErrNotSupported)
	require.ErrorIs(t, h.suitable(verbs.DeviceAttr{MaxCQE: linkNeed(), MaxQPWR: depth}, verbs.PortAttr{}), verbs.ErrNotSupported)
}
