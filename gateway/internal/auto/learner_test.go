package auto

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

var autoAt = netip.MustParseAddrPort("10.0.0.2:6379")

// autoClock is a time of tests.
var autoClock = time.Unix(1_800_000_000, 0)

// whole is a connection that was looked at once, at its end.
func whole(c config.Carrier, bytes, moves uint64) evidence {
	return evidence{carrier: c, bytes: bytes, moves: moves, seconds: 1, begun: true, settled: true}
}

// stateOf is what the learner thinks of a service.
func stateOf(l *learner, at netip.AddrPort) ebpf.ServiceState {
	if s := l.services[at]; s != nil {
		return s.state
	}
	return 0
}

func TestAutoVerdicts(t *testing.T) {
	for name, tc := range map[string]struct {
		seen  []evidence
		want  ebpf.ServiceState
		waits bool // for more, before so little makes a service native
	}{
		"one sample is not enough":         {[]evidence{whole(config.CarrierShm, 50<<20, 400)}, ebpf.ServiceSampling, false},
		"requests of a database":           {[]evidence{{carrier: config.CarrierShm, bytes: 22_500, moves: 1000, begun: true}}, ebpf.ServiceNative, false},
		"short connections":                {[]evidence{whole(config.CarrierShm, 800, 2), whole(config.CarrierShm, 800, 2)}, ebpf.ServiceNative, true},
		"idle connections":                 {[]evidence{whole(config.CarrierShm, 0, 0), whole(config.CarrierShm, 0, 0)}, ebpf.ServiceNative, true},
		"a bulk stream that goes on":       {[]evidence{{carrier: config.CarrierShm, bytes: 1 << 30, moves: 1 << 13, begun: true}}, ebpf.ServiceCarry, false},
		"control and data":                 {[]evidence{whole(config.CarrierShm, 500, 12), whole(config.CarrierShm, 40<<20, 320)}, ebpf.ServiceCarry, false},
		"files of 40 MB":                   {[]evidence{whole(config.CarrierShm, 40<<20, 320), whole(config.CarrierShm, 40<<20, 320)}, ebpf.ServiceCarry, false},
		"files of 1 MB":                    {[]evidence{whole(config.CarrierShm, 1<<20, 9), whole(config.CarrierShm, 1<<20, 9)}, ebpf.ServiceNative, true},
		"much in small pieces":             {[]evidence{{carrier: config.CarrierShm, bytes: 1 << 30, moves: 1 << 18, begun: true}}, ebpf.ServiceNative, false},
		"what shm pays for, soft does not": {[]evidence{whole(config.CarrierSoft, 40<<20, 320), whole(config.CarrierSoft, 12<<20, 100)}, ebpf.ServiceNative, true},
		"a relay never pays":               {[]evidence{{carrier: config.CarrierRelay, bytes: 1 << 30, moves: 1 << 13, begun: true}}, ebpf.ServiceNative, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLearner(time.Minute)
			for _, e := range tc.seen {
				l.learn(autoAt, e, autoClock)
			}
			soon := tc.want
			if tc.waits {
				soon = ebpf.ServiceSampling
			}
			require.Equal(t, soon, stateOf(l, autoAt), "%+v", l.services[autoAt])
			l.learn(autoAt, evidence{carrier: tc.seen[0].carrier}, autoClock.Add(time.Minute/autoCompares))
			require.Equal(t, tc.want, stateOf(l, autoAt), "%+v", l.services[autoAt])
		})
	}
}

// small and bulk are enough for a verdict each.
var (
	small = evidence{carrier: config.CarrierShm, bytes: 100_000, moves: 5000, begun: true, settled: true}
	bulk  = evidence{carrier: config.CarrierShm, bytes: 1 << 30, moves: 5000, begun: true, settled: true}
)

// TestAutoSamplesAgain: each native verdict in a row counts for twice as long, and
// one that carries begins anew.
func TestAutoSamplesAgain(t *testing.T) {
	l, now := newLearner(time.Minute), autoClock
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 16, 16} {
		do, tell := l.learn(autoAt, small, now)
		require.True(t, tell, i)
		require.Equal(t, ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceNative, TTL: want * time.Minute}, do)
		now = now.Add(want * time.Minute)
	}
	do, tell := l.learn(autoAt, bulk, now)
	require.True(t, tell)
	require.Equal(t, ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceCarry, Tokens: Samples}, do)
	won(l, now)
	now = now.Add(time.Second)
	do, tell = l.learn(autoAt, small, now) // one is outweighed by the bulk of the window
	require.False(t, tell, "%+v", do)
	for !tell {
		now = now.Add(time.Second)
		do, tell = l.learn(autoAt, evidence{carrier: config.CarrierShm, bytes: 100_000, moves: 5000, settled: true}, now)
	}
	require.Equal(t, ebpf.ServiceNative, do.State)
	require.Equal(t, time.Minute, do.TTL, "not in a row")
}

// won lets the carried connections of a service be faster than native ones.
func won(l *learner, now time.Time) { rates(l, now, 2, 1) }

// rates tells of two carried and two native connections that moved bulk, so fast.
func rates(l *learner, now time.Time, carried, native float64) (do ebpf.Service, tell bool) {
	e := bulk
	e.begun, e.whole = false, rate{conns: 1, bytes: 1 << 30, seconds: 1 / carried}
	for range 2 {
		l.learn(autoAt, e, now)
		c := l.services[autoAt].counted
		c.Watched++
		c.Bytes += 1 << 30
		c.Lasted += time.Duration(float64(time.Second) / native)
		do, tell = l.learnNative(autoAt, c, now)
	}
	return do, tell
}

// TestAutoCompares: bulk is carried only while that is as fast as native TCP, and
// compared again after times that double.
func TestAutoCompares(t *testing.T) {
	l, now := newLearner(autoCompares*time.Minute), autoClock
	for i := range 3 {
		do, tell := l.learn(autoAt, bulk, now)
		require.True(t, tell)
		require.Equal(t, ebpf.ServiceCarry, do.State)
		require.Equal(t, Samples, do.Tokens, "compared at once")
		do, tell = rates(l, now, 0.5, 1)
		require.True(t, tell)
		require.Equal(t, ebpf.ServiceNative, do.State, "native is faster")
		require.Equal(t, l.base<<i, do.TTL)
		require.Greater(t, l.services[autoAt].last.score(), 1.0)
		now = now.Add(do.TTL)
	}
	l.learn(autoAt, bulk, now)
	for i := range 3 {
		_, tell := rates(l, now, 1.1, 1)
		require.False(t, tell)
		require.Equal(t, ebpf.ServiceCarry, stateOf(l, autoAt))
		now = now.Add(time.Minute<<i - time.Second)
		do, tell := l.learn(autoAt, bulk, now)
		require.True(t, tell, "told again")
		require.Zero(t, do.Tokens)
		now = now.Add(autoTellAgain)
		do, tell = l.learn(autoAt, bulk, now)
		require.True(t, tell)
		require.Equal(t, Samples, do.Tokens)
	}
	now = now.Add(l.base / 2)
	do, tell := l.learn(autoAt, bulk, now)
	require.True(t, tell)
	require.Zero(t, do.Tokens, "they go on")
	now = now.Add(l.base / 2)
	do, tell = l.learn(autoAt, bulk, now)
	require.True(t, tell)
	require.Equal(t, Samples, do.Tokens, "others")
	_, tell = l.learnNative(autoAt, ebpf.Service{Watched: 1, Bytes: 1 << 30, Lasted: time.Second}, now)
	require.False(t, tell, "the steering had forgotten what it counted")
	require.EqualValues(t, 1<<30, l.services[autoAt].native.bytes)
	l.learnNative(autoAt, ebpf.Service{Watched: 2, Bytes: 5 << 20, Lasted: time.Hour}, now)
	require.EqualValues(t, 1<<30+5<<20, l.services[autoAt].native.bytes, "and had, and counted as many again")
	l.learnNative(autoAt, ebpf.Service{Watched: 3, Bytes: 8 << 20, Lasted: time.Second}, now)
	require.EqualValues(t, 1<<30+13<<20, l.services[autoAt].native.bytes)
	require.InDelta(t, 3602, l.services[autoAt].native.seconds, 1e-6)
	conns := l.services[autoAt].native.conns
	l.learnNative(autoAt, ebpf.Service{Watched: 4, Bytes: 8 << 20, Lasted: time.Second}, now)
	l.learnNative(autoAt, ebpf.Service{Watched: 4, Bytes: 9 << 20, Lasted: 2 * time.Second}, now)
	require.Equal(t, conns+1, l.services[autoAt].native.conns, "counted when all of it is there")
	_, tell = l.learnNative(netip.MustParseAddrPort("10.0.0.9:1"), ebpf.Service{Watched: 1}, now)
	require.False(t, tell, "just being counted")
}

// TestAutoComparesAgain: when the two that were left native are ahead of carried ones by what
// may be chance, two more are left native, as long as carried ones to compare with keep up.
// Probes among them tell nothing.
func TestAutoComparesAgain(t *testing.T) {
	l, now := newLearner(autoCompares*time.Minute), autoClock
	l.learn(autoAt, bulk, now)
	c := ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceCarry}
	carried, asked := bulk, Samples
	carried.begun, carried.whole = false, rate{conns: 1, bytes: 1 << 30, seconds: 1}
	tick := func(bytes uint64, took time.Duration) {
		now = now.Add(time.Second)
		c = ended(c, bytes, took)
		if do, tell := l.learnNative(autoAt, c, now); tell {
			require.Equal(t, Samples, do.Tokens)
			asked += do.Tokens
		}
	}
	tick(300, time.Millisecond)
	require.Equal(t, Samples, asked, "one of two has ended")
	tick(300, time.Millisecond)
	require.Equal(t, 2*Samples, asked, "probes")
	l.learn(autoAt, carried, now)
	l.learn(autoAt, carried, now)
	tick(1<<30, 900*time.Millisecond)
	tick(1<<30, 900*time.Millisecond)
	require.Equal(t, 3*Samples, asked, "a tenth is chance")
	require.Equal(t, ebpf.ServiceCarry, stateOf(l, autoAt))
	tick(1<<30, 900*time.Millisecond)
	tick(1<<30, 900*time.Millisecond)
	require.Equal(t, 3*Samples, asked, "carried ones are fewer")
	for range 3 {
		l.learn(autoAt, carried, now)
	}
	tick(1<<30, 1200*time.Millisecond)
	require.Equal(t, 4*Samples, asked)
	carried.whole.seconds = 0.8
	for range 4 {
		l.learn(autoAt, carried, now)
	}
	require.Equal(t, ebpf.ServiceCarry, stateOf(l, autoAt))
	require.False(t, l.services[autoAt].comparing, "%+v", l.services[autoAt])
}

// TestAutoProbesTellNothing: two tiny connections, native or carried, say nothing about a
// service whose others move bulk. When there are no others for a while, they do.
func TestAutoProbesTellNothing(t *testing.T) {
	start := func() (*learner, ebpf.Service) {
		l := newLearner(autoCompares * time.Minute)
		l.meet(autoAt.Addr(), config.CarrierShm, autoClock)
		c := ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceSampling}
		for range 2 {
			c = ended(c, 300, time.Millisecond)
			_, tell := l.learnNative(autoAt, c, autoClock)
			require.False(t, tell)
		}
		return l, c
	}
	t.Run("alone", func(t *testing.T) {
		l, c := start()
		_, tell := l.learnNative(autoAt, c, autoClock.Add(time.Minute-1))
		require.False(t, tell)
		do, tell := l.learnNative(autoAt, c, autoClock.Add(time.Minute))
		require.True(t, tell)
		require.Equal(t, ebpf.ServiceNative, do.State)
	})
	t.Run("many", func(t *testing.T) {
		l, c := start()
		for range autoMany - 2 {
			require.Equal(t, ebpf.ServiceSampling, stateOf(l, autoAt))
			c = ended(c, 300, time.Millisecond)
			l.learnNative(autoAt, c, autoClock)
		}
		require.Equal(t, ebpf.ServiceNative, stateOf(l, autoAt))
	})
	t.Run("beside bulk", func(t *testing.T) {
		l, c := start()
		now, asked := autoClock, 0
		for range 120 {
			now = now.Add(time.Second)
			c = ended(c, 1<<30, time.Second)
			if do, tell := l.learnNative(autoAt, c, now); tell {
				require.Equal(t, ebpf.ServiceSampling, do.State)
				asked += do.Tokens
			}
		}
		require.Positive(t, asked)
		for range 8 { // all of the samples are probes
			l.learn(autoAt, whole(config.CarrierShm, 300, 2), now)
			now = now.Add(10 * time.Minute)
		}
		require.Equal(t, ebpf.ServiceSampling, stateOf(l, autoAt))
	})
}

// TestAutoOldConnectionsTell: those that are carried while their service is native
// can call it back, and do not make its time longer.
func TestAutoOldConnectionsTell(t *testing.T) {
	l, now := newLearner(time.Minute), autoClock
	l.learn(autoAt, small, now)
	more := small
	more.begun = false
	for range 10 {
		now = now.Add(time.Second)
		_, tell := l.learn(autoAt, more, now)
		require.False(t, tell)
	}
	require.Equal(t, autoClock.Add(time.Minute), l.services[autoAt].until)
	more = bulk
	more.begun = false
	do, tell := l.learn(autoAt, more, now)
	require.True(t, tell)
	require.Equal(t, ebpf.ServiceCarry, do.State)
}

// TestAutoOldConnectionsLost: they do not where natives were found to be faster.
func TestAutoOldConnectionsLost(t *testing.T) {
	l, now := newLearner(time.Minute), autoClock
	l.learn(autoAt, bulk, now)
	do, tell := rates(l, now, 0.5, 1)
	require.True(t, tell)
	require.Equal(t, ebpf.ServiceNative, do.State)
	more := bulk
	more.begun = false
	for range 10 {
		now = now.Add(time.Second)
		_, tell := l.learn(autoAt, more, now)
		require.False(t, tell)
	}
	require.Equal(t, ebpf.ServiceNative, stateOf(l, autoAt))
}

// TestAutoOldConnectionsSlower: nor where they are slower than native ones that nothing was compared with yet: the sample
// had moved too little for that, and for its price.
func TestAutoOldConnectionsSlower(t *testing.T) {
	for seconds, want := range map[float64]ebpf.ServiceState{0.5: ebpf.ServiceCarry, 4: ebpf.ServiceNative} {
		l, now := newLearner(time.Minute), autoClock
		c := ended(ebpf.Service{State: ebpf.ServiceSampling}, 1<<27, time.Second/8)
		l.learnNative(autoAt, c, now)
		begun := evidence{carrier: config.CarrierSoft, bytes: 32 << 20, moves: 512, begun: true}
		l.learn(autoAt, begun, now)
		require.Equal(t, ebpf.ServiceNative, stateOf(l, autoAt))
		l.learn(autoAt, evidence{carrier: config.CarrierSoft, bytes: 1 << 30, moves: 8192, seconds: seconds, settled: true}, now.Add(time.Second))
		require.Equal(t, want, stateOf(l, autoAt), "%v s", seconds)
	}
}

// TestAutoCountsIdleTime: a sample costs time also while it moves nothing.
func TestAutoCountsIdleTime(t *testing.T) {
	s := &simulation{work: work{bytes: 100, message: 100}, now: autoClock}
	s.book = NewBook(s, time.Minute, false, slog.New(slog.DiscardHandler))
	c := &simConn{of: s, begin: s.now, end: s.now.Add(time.Hour)}
	for range 100 {
		s.now = s.now.Add(time.Second)
		s.book.Look(c, config.CarrierShm, false, s.now)
	}
	s.book.Look(c, config.CarrierShm, true, s.now.Add(time.Second))
	require.InDelta(t, 101, s.book.learner.services[autoAt].account.open, 1e-6)
}

// TestAutoIsToldAgain: a connection that was carried though its service is native
// shows that the steering has forgotten.
func TestAutoIsToldAgain(t *testing.T) {
	l := newLearner(time.Minute)
	l.learn(autoAt, small, autoClock)
	quiet := evidence{carrier: config.CarrierShm, begun: true}
	_, tell := l.learn(autoAt, quiet, autoClock.Add(time.Second))
	require.False(t, tell, "begun before it was told")
	do, tell := l.learn(autoAt, quiet, autoClock.Add(20*time.Second))
	require.True(t, tell)
	require.Equal(t, ebpf.ServiceNative, do.State)
	require.Equal(t, 40*time.Second, do.TTL)
}

// TestAutoIsToldOfNatives: so does a native connection that was looked at though its
// service has a verdict.
func TestAutoIsToldOfNatives(t *testing.T) {
	for _, e := range []evidence{small, bulk} {
		l := newLearner(time.Minute)
		said, _ := l.learn(autoAt, e, autoClock)
		c := ended(ebpf.Service{State: ebpf.ServiceSampling}, 100, time.Second)
		_, tell := l.learnNative(autoAt, c, autoClock.Add(time.Second))
		require.False(t, tell, "begun before it was told")
		do, tell := l.learnNative(autoAt, ended(c, 100, time.Second), autoClock.Add(20*time.Second))
		require.True(t, tell)
		require.Equal(t, said.State, do.State)
		do, tell = l.learnNative(autoAt, ended(c, 100, time.Second), autoClock.Add(21*time.Second))
		require.False(t, tell, "%v: it was", do)
	}
}

// TestAutoIsBounded: those that were used last are kept.
func TestAutoIsBounded(t *testing.T) {
	l := newLearner(time.Minute)
	l.limit = 64
	for i := range 1000 {
		at := netip.AddrPortFrom(autoAt.Addr(), uint16(1+i))
		now := autoClock.Add(time.Duration(i) * time.Second)
		l.learn(at, small, now)
		l.learn(autoAt, small, now)
		require.LessOrEqual(t, len(l.services), 64)
		require.Contains(t, l.services, at)
		require.Contains(t, l.services, autoAt)
	}
}

// TestAutoModel: whatever happens, a verdict follows from what was seen, the
// steering and the learner agree, and native does not last.
func TestAutoModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := newLearner(time.Minute), autoClock
		told := map[netip.AddrPort]ebpf.Service{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 30, 90, 3600}).Draw(t, "wait")) * time.Second)
			at := netip.AddrPortFrom(autoAt.Addr(), uint16(rapid.IntRange(1, 3).Draw(t, "service")))
			e := evidence{
				carrier: rapid.SampledFrom(config.Carriers()).Draw(t, "carrier"),
				bytes:   rapid.SampledFrom([]uint64{0, 100, 1 << 20, 1 << 32}).Draw(t, "bytes"),
				moves:   rapid.SampledFrom([]uint64{0, 1, 100, 1 << 20}).Draw(t, "moves"),
				begun:   rapid.Bool().Draw(t, "begun"), settled: rapid.Bool().Draw(t, "settled"),
			}
			if e.settled {
				e.whole = rate{conns: 1, bytes: e.bytes, seconds: rapid.Float64Range(0.01, 10).Draw(t, "lasted")}
			}
			before, was := stateOf(l, at), time.Time{}
			if s := l.services[at]; s != nil {
				was = s.until
			}
			do, tell := l.learn(at, e, now)
			s := l.services[at]
			if tell {
				require.Equal(t, at, netip.AddrPortFrom(do.Addr, do.Port))
				told[at] = do
			}
			checkAutoStep(t, before, was, s, e, now)
			before, was = s.state, s.until
			count := ended(s.counted, rapid.SampledFrom([]uint64{0, 100, 1 << 20, 1 << 30}).Draw(t, "native bytes"), time.Second)
			count.State, count.Tokens = told[at].State, rapid.IntRange(0, 1).Draw(t, "tokens")
			if count.State != ebpf.ServiceCarry && !now.Before(was) {
				count.State = ebpf.ServiceSampling
			}
			do, tell = l.learnNative(at, count, now)
			if tell {
				told[at] = do
			}
			checkAutoNative(t, before, was, s, count, do, tell, now)
			if s.state != ebpf.ServiceSampling {
				require.Equal(t, s.state, told[at].State, "the steering knows")
			}
		}
	})
}

// checkAutoStep checks the arrows of the diagram.
func checkAutoStep(t *rapid.T, before ebpf.ServiceState, was time.Time, s *service, e evidence, now time.Time) {
	if before == ebpf.ServiceNative && e.begun && !now.Before(was) {
		before = ebpf.ServiceSampling
	}
	switch step := fmt.Sprint(before, s.state); {
	case before == 0 || before == s.state:
	case s.state == ebpf.ServiceCarry:
		require.GreaterOrEqual(t, s.last.score(), 1.0, step)
		faster := s.compared[0].perSecond() >= s.compared[1].perSecond()
		require.True(t, s.last.plenty(1) || faster, step)
	case s.state == ebpf.ServiceNative:
		slower := s.compared[0].perSecond() < s.compared[1].perSecond()
		require.True(t, s.last.score() < 1 || slower || s.close(), step)
		require.Positive(t, s.natives)
	default:
		require.Fail(t, "no such step", step)
	}
	if s.state == ebpf.ServiceNative {
		require.LessOrEqual(t, s.until.Sub(s.told), 16*time.Minute)
	}
	require.LessOrEqual(t, s.now.paid, s.now.bytes)
}

// checkAutoNative checks what native connections change.
func checkAutoNative(t *rapid.T, before ebpf.ServiceState, was time.Time, s *service, c, do ebpf.Service, tell bool, now time.Time) {
	if before == ebpf.ServiceNative && c.State == ebpf.ServiceSampling && !now.Before(was) {
		before = ebpf.ServiceSampling
	}
	compared := s.compared[0].perSecond() - s.compared[1].perSecond()
	switch {
	case tell && do.State == ebpf.ServiceSampling:
		require.Equal(t, ebpf.ServiceSampling, before)
		require.Zero(t, c.Tokens, "no sample waits")
		require.Equal(t, 1, do.Tokens)
		require.Positive(t, s.account.earned)
	case before == s.state:
	case s.state == ebpf.ServiceNative:
		require.True(t, tell)
		require.True(t, compared < 0 || s.close() || s.saw.conns >= Samples && s.saw.best() < 1)
	default:
		require.Equal(t, []ebpf.ServiceState{ebpf.ServiceSampling, ebpf.ServiceCarry}, []ebpf.ServiceState{before, s.state})
		require.True(t, tell)
		require.Positive(t, compared)
	}
}

// close reports whether as many were compared as decide a close race.
func (s *service) close() bool {
	return min(s.compared[0].conns, s.compared[1].conns) >= autoEnough
}

// ended is c with one more native connection that has ended.
func ended(c ebpf.Service, bytes uint64, took time.Duration) ebpf.Service {
	if bytes >= autoBulk {
		c.Watched, c.Bytes, c.Lasted = c.Watched+1, c.Bytes+bytes, c.Lasted+took
	}
	c.Ended, c.Moved, c.Took, c.Segments = c.Ended+1, c.Moved+bytes, c.Took+took, c.Segments+bytes/1448+2
	return c
}

// The programs' table (LRU) forgets a service while it is native, and counts it anew from 0:
// as many connections have ended as before, but they moved less.
func TestForgottenWhileNative(t *testing.T) {
	l := newLearner(time.Minute)
	l.peers[autoAt.Addr()] = &met{carrier: config.CarrierSoft}
	now := autoClock
	c := ebpf.Service{
		Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceSampling, Ended: 2, Moved: 1_600_000, Segments: 1300, Took: 50 * time.Second,
	}
	l.learnNative(autoAt, c, now)
	_, tell := l.learnNative(autoAt, c, now.Add(time.Minute/autoCompares))
	require.True(t, tell)
	require.Equal(t, ebpf.ServiceNative, stateOf(l, autoAt))
	c.Ended, c.Moved, c.Segments, c.Took = 3, 3000, 12, 30*time.Millisecond
	do, tell := l.learnNative(autoAt, c, now.Add(2*time.Minute))
	require.False(t, tell && do.State == ebpf.ServiceSampling && do.Tokens > 0, "a sample of a service of 1 KB a connection")
}

// TestAutoQuietSample: a connection for control that is the sample, and goes on, does not keep
// the service from being sampled by one of bulk. What that shows is found out.
func TestAutoQuietSample(t *testing.T) {
	for _, carrier := range []config.Carrier{config.CarrierShm, config.CarrierSoft, config.CarrierHW} {
		t.Run(string(carrier), func(t *testing.T) {
			l, now := newLearner(10*time.Minute), autoClock
			l.peers[autoAt.Addr()] = &met{carrier: carrier}
			l.learn(autoAt, evidence{carrier: carrier, bytes: 500, moves: 4, begun: true}, now)
			c := ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceSampling}
			var asked []time.Duration
			for range 3600 {
				now = now.Add(time.Second)
				switch since := now.Sub(autoClock); {
				case since == autoSettle:
					l.learn(autoAt, evidence{carrier: carrier, settled: true, seconds: autoSettle.Seconds()}, now)
				case since%(30*time.Second) == 0:
					l.learn(autoAt, evidence{carrier: carrier, bytes: 100, moves: 2, seconds: 20}, now)
				}
				c = ended(c, 100<<20, time.Second)
				if do, tell := l.learnNative(autoAt, c, now); tell && do.Tokens > 0 {
					asked = append(asked, now.Sub(autoClock))
				}
			}
			require.GreaterOrEqual(t, len(asked), 3)
			require.GreaterOrEqual(t, asked[0], autoSettle+autoAsk)
			for i := 2; i < len(asked); i++ {
				require.Equal(t, autoAsk<<min(i-1, autoDoublings), asked[i]-asked[i-1], "asked for at %v", asked)
			}
			l.learn(autoAt, evidence{carrier: carrier, bytes: 1 << 30, moves: 1 << 13, seconds: 2, begun: true}, now)
			require.Equal(t, ebpf.ServiceCarry, stateOf(l, autoAt), "it goes on: %+v", l.services[autoAt])
		})
	}
}
