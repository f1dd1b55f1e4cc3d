package auto

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

const (
	// Samples is how many connections of an unknown service are carried to
	// learn from. Two: many services have a connection for control beside the one
	// for data.
	Samples = 2
	// autoSettle is how old a connection gets before it counts as one that has told
	// what it can, though it goes on.
	autoSettle = 10 * time.Second
	// autoCarryWindow is how much more must be seen to call a service back that is
	// carried than to judge one that is sampled: small connections come in between.
	autoCarryWindow = 32
	// autoDoublings bounds how long a service is left native: 16 times as long as at
	// first.
	autoDoublings = 4
	// autoCompares is how many times in its first native time a service that is carried
	// is compared with native connections, at first, and the part of its native time for
	// which small connections do not make a service native again.
	autoCompares = 16
	// autoMany is how many small connections make a service native before.
	autoMany = 64
	// autoAlike is the part of what others move on the mean that a connection has to move
	// to be compared with them.
	autoAlike = 0.25
	// autoTellAgain is how old a verdict is when the steering is told once more: its
	// table forgets the least recently used.
	autoTellAgain = 5 * time.Second
	// MaxServices bounds the services that are remembered.
	MaxServices = 4096
)

// evidence is what one connection that was carried did since it was last
// looked at.
type evidence struct {
	carrier      config.Carrier
	bytes, moves uint64
	seconds      float64
	begun        bool // it is looked at for the first time
	settled      bool // it has ended, or lasted autoSettle
	sample       bool // it is carried to learn from
	whole        rate // of its whole life, when it has ended
}

// service is what is known of a service, from connections of rules with
// action auto that this host made.
//
//	   score ≥ 1, and faster than natives
//	sampling ────────────────────────► carry ◄─┐ from time to time some are left
//	 ▲    │ score < 1, or not           │ ▲  └─┘ native: not faster than carried ones
//	 │    │ faster      score < 1/2, or │ │
//	 │    ▼             natives faster  ▼ │ connections still carried: score ≥ 2
//	 └── native ◄─────────────────────────┘
//	  after its time, which doubles with every native verdict in a row
//
// A verdict is about connections that begin after it.
type service struct {
	state   ebpf.ServiceState
	until   time.Time // native: sampled, carry: compared again by the first connection from then on
	natives int       // native verdicts in a row
	passed  int       // comparisons in a row that carrying has won
	told    time.Time // the steering
	news    bool      // a verdict it was not told
	used    time.Time
	since   time.Time // it is looked at
	now     sums      // seen since the last verdict, or since long ago
	last    sums      // what the last verdict was made of

	looked  looks // native connections since the last verdict
	saw     looks // what the last verdict was made of
	account account
	samples samples

	comparing       bool         // the steering leaves some native to compare with
	left            uint64       // counted.Ended when these have ended
	carried, native rate         // of bulk, since the last comparison
	compared        [2]rate      // carried and native of the last comparison
	counted         ebpf.Service // how far native has been looked at
}

// learner decides per service. It does no I/O and has no clock; calls take
// turns.
type learner struct {
	base     time.Duration // the first time a service is left native
	paces    bool          // what is native here paces, unless its peer is known to be near
	limit    int
	services map[netip.AddrPort]*service
	peers    map[netip.Addr]*met
}

func newLearner(base time.Duration) *learner {
	return &learner{base: base, limit: MaxServices, services: map[netip.AddrPort]*service{}, peers: map[netip.Addr]*met{}}
}

// learn takes in what a connection to a service did. If tell, the steering must
// be told what to do with connections to it from now on.
func (l *learner) learn(at netip.AddrPort, e evidence, now time.Time) (do ebpf.Service, tell bool) {
	s := l.service(at, now)
	s.used = now
	if s.state == ebpf.ServiceNative && e.begun && !now.Before(s.until) {
		s.resample(now) // the steering has begun to
	}
	e.seconds = s.looked.busy(e)
	s.now.add(e)
	s.carried.add(e.whole)
	s.samples.took(e, now)
	if e.sample {
		s.account.carried(e.seconds)
	}
	if next := l.verdict(s, now); next != s.state {
		l.decide(s, next, now)
	}
	l.compare(s, now)
	switch {
	case s.news:
	case !e.begun || s.state == ebpf.ServiceSampling || now.Sub(s.told) < autoTellAgain:
		return ebpf.Service{}, false
	case s.state == ebpf.ServiceCarry && l.due(s, now):
		if !s.comparing { // what ended while none was left native is of another time
			s.carried, s.native = rate{}, rate{}
		}
		s.comparing = false
	}
	return l.tell(s, at, now), true
}

// learnNative takes in what the steering has counted of native connections.
func (l *learner) learnNative(at netip.AddrPort, c ebpf.Service, now time.Time) (do ebpf.Service, tell bool) {
	s := l.service(at, now)
	if was := s.counted; c.Watched < was.Watched || c.Bytes < was.Bytes || c.Lasted < was.Lasted || c.Ended < was.Ended ||
		c.Moved < was.Moved || c.Segments < was.Segments || c.Took < was.Took { // it had forgotten the service
		s.counted = ebpf.Service{}
	}
	ended := rate{
		conns: c.Watched - s.counted.Watched, bytes: c.Bytes - s.counted.Bytes, seconds: (c.Lasted - s.counted.Lasted).Seconds(),
	}
	if ended.bytes < ended.conns*autoBulk { // one is just being counted
		return ebpf.Service{}, false
	}
	switch {
	case c.State != ebpf.ServiceSampling:
	case s.state == ebpf.ServiceNative && !now.Before(s.until):
		s.resample(now)
	case s.state != ebpf.ServiceSampling && now.Sub(s.told) >= autoTellAgain:
		s.news = true // it has forgotten what it was told
	}
	s.look(&c, now)
	s.native.add(ended)
	s.counted = c
	l.compare(s, now)
	if s.comparing && c.State == ebpf.ServiceCarry && c.Tokens == 0 && c.Ended >= s.left && s.carried.conns >= s.native.conns {
		s.comparing, s.news = false, true // they did not decide it: two more
	}
	l.foresee(s, at.Addr(), &c, now)
	if !s.news {
		return ebpf.Service{}, false
	}
	return l.tell(s, at, now), true
}

// carries reports whether connections to a service that begin are carried, all of them.
func (l *learner) carries(at netip.AddrPort) bool {
	s := l.services[at]
	return s != nil && s.state == ebpf.ServiceCarry
}

// resample begins anew, but for what samples have cost.
func (s *service) resample(now time.Time) {
	s.state, s.since = ebpf.ServiceSampling, now
	s.now, s.carried, s.native, s.looked, s.samples = sums{}, rate{}, rate{}, looks{}, samples{}
}

// due reports whether it is time to leave some native again, to compare with. Such
// that have not ended after a long time are given up.
func (l *learner) due(s *service, now time.Time) bool {
	return !now.Before(s.until) && (!s.comparing || now.Sub(s.until) >= l.base)
}

// tell is what the steering is to do.
func (l *learner) tell(s *service, at netip.AddrPort, now time.Time) ebpf.Service {
	s.told, s.news = now, false
	do := ebpf.Service{Addr: at.Addr(), Port: at.Port(), State: s.state}
	switch {
	case s.state == ebpf.ServiceNative:
		do.TTL = s.until.Sub(now)
	case s.state == ebpf.ServiceSampling:
		do.Tokens, do.TTL = 1, autoAsk
	case !s.comparing && l.due(s, now):
		do.Tokens, s.comparing, s.until, s.left = Samples, true, now, s.counted.Ended+Samples
	}
	return do
}

// compare looks whether carried connections are as fast as native ones, once there are
// some of both. Those of which some are tried, samples or such that are left native, must
// not be much smaller than the others.
//
// A service is carried when its samples were faster by more than chance, and native when
// they were slower by that, or when enough of them were not clearly faster. One that is
// carried stays so when it is not behind. When it is, more are left native, until that is
// more than chance, or they are enough.
func (l *learner) compare(s *service, now time.Time) {
	carried, sampled := s.bulk(), s.state == ebpf.ServiceSampling
	if carried.conns == 0 || s.native.conns == 0 || !sampled && !s.comparing {
		return
	}
	tried, others, least := &carried, &s.native, uint64(1)
	if !sampled {
		tried, others, least = others, tried, Samples
	}
	both := min(carried.conns, s.native.conns)
	enough := both >= autoEnough
	if !enough && (both < least || tried.mean() < others.mean()*autoAlike) {
		return
	}
	ahead, deviation := race(&carried, &s.native)
	s.compared = [2]rate{carried, s.native}
	switch {
	case sampled && ahead > autoSure*deviation && s.now.score() >= 1:
		s.account.settle(1 - math.Exp(ahead))
		l.decide(s, ebpf.ServiceCarry, now)
		l.stays(s, now)
	case !sampled && ahead >= 0:
		l.stays(s, now)
	case enough || ahead < -autoSure*deviation:
		s.account.settle(1 - math.Exp(ahead))
		last := s.last
		l.decide(s, ebpf.ServiceNative, now)
		if !sampled {
			s.last = last // it was not the score
		}
	case sampled:
		s.account.expect(1 - math.Exp(ahead-deviation))
	}
}

// stays puts the next comparison of a service that is carried off.
func (l *learner) stays(s *service, now time.Time) {
	s.comparing, s.carried, s.native, s.natives = false, rate{}, rate{}, 0
	s.until = now.Add(min(max(l.base/autoCompares, time.Second)<<min(s.passed, 2*autoDoublings), l.base<<autoDoublings))
	s.passed++
}

// bulk is how fast carried connections are: that of those that have ended, or while
// natives are known to compare with, of one that goes on.
func (s *service) bulk() rate {
	if s.carried.conns == 0 && s.state == ebpf.ServiceSampling && s.now.settled > 0 && s.now.paid >= autoBytes {
		var r rate
		r.add(rate{conns: s.now.conns, bytes: s.now.paid, seconds: s.now.seconds})
		return r
	}
	return s.carried
}

// verdict is what should be done from now on, by what carried connections have moved.
func (l *learner) verdict(s *service, now time.Time) ebpf.ServiceState {
	score := s.now.score()
	switch s.state {
	case ebpf.ServiceCarry:
		if !s.now.plenty(autoCarryWindow) {
			return s.state
		}
		if score < 0.5 {
			return ebpf.ServiceNative
		}
	case ebpf.ServiceNative:
		if !s.now.plenty(1) {
			return s.state
		}
		slower := s.account.slower > 0 || float64(s.now.paid) < s.native.perSecond()*s.now.seconds // than natives, as far as is known
		if score >= 2 && !slower {
			return ebpf.ServiceCarry
		}
	default:
		switch {
		case !s.now.plenty(1), s.now.conns == 0, score >= 1 && s.native.conns > 0: // old ones tell nothing, compare decides
			return s.state
		case score >= 1:
			return ebpf.ServiceCarry
		case !s.now.much(1) && !l.lookedLong(s, now), s.now.mean() < s.looked.moved()*autoAlike:
			return s.state // it was a probe of its health, for instance
		default:
			return ebpf.ServiceNative
		}
	}
	s.last = s.now
	s.now.decay()
	return s.state
}

// lookedLong reports whether connections that move little show that there are no others:
// they were looked at for a part of the time for which they make the service native, or
// are many.
func (l *learner) lookedLong(s *service, now time.Time) bool {
	least := max(l.base/autoCompares, time.Second) << min(s.natives, autoDoublings)
	return s.looked.conns+s.now.conns >= autoMany || now.Sub(s.since) >= least
}

// decide makes a verdict.
func (l *learner) decide(s *service, next ebpf.ServiceState, now time.Time) {
	s.state, s.last, s.passed, s.comparing, s.news = next, s.now, 0, false, true
	s.saw, s.looked, s.samples = s.looked, looks{}, samples{}
	if next == ebpf.ServiceCarry {
		s.until = now // compared at once
		s.now.decay() // a few small connections do not call it back
		return
	}
	s.now = sums{}
	s.until = now.Add(l.base << min(s.natives, autoDoublings))
	s.natives++
}

// service finds or makes a record.
func (l *learner) service(at netip.AddrPort, now time.Time) *service {
	s := l.services[at]
	if s == nil {
		if len(l.services) >= l.limit {
			l.evict()
		}
		s = &service{state: ebpf.ServiceSampling, used: now, since: now}
		l.services[at] = s
	}
	return s
}

// evict forgets the eighth that was used least recently: it walks all of them,
// and must not have to every time.
func (l *learner) evict() {
	all := make([]netip.AddrPort, 0, len(l.services))
	for at := range l.services {
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b netip.AddrPort) int { return l.services[a].used.Compare(l.services[b].used) })
	for _, at := range all[:len(all)/8+1] {
		delete(l.services, at)
	}
}
