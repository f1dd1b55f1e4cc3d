package gateway

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

const (
	// autoSamples is how many connections of an unknown service are carried to
	// learn from. Two: many services have a connection for control beside the one
	// for data.
	autoSamples = 2
	// autoSettle is how old a connection gets before it counts as one that has told
	// what it can, though it goes on.
	autoSettle = 10 * time.Second
	// autoCarryWindow is how much more must be seen to call a service back that is
	// carried than to judge one that is sampled.
	autoCarryWindow = 4
	// autoDoublings bounds how long a service is left native: 16 times as long as at
	// first.
	autoDoublings = 4
	// autoTellAgain is how old a verdict is when the steering is told once more: its
	// table forgets the least recently used.
	autoTellAgain = 5 * time.Second
	// autoServices bounds the services that are remembered.
	autoServices = 4096
)

// autoEvidence is what one connection that was carried did since it was last
// looked at.
type autoEvidence struct {
	carrier      Carrier
	bytes, moves uint64
	seconds      float64
	begun        bool // it is looked at for the first time
	settled      bool // it has ended, or lasted autoSettle
}

// autoService is what is known of a service, from connections of rules with
// action auto that this host made.
//
//	          enough seen: score ≥ 1
//	sampling ────────────────────────► carry
//	 ▲    │                             │ ▲ connections that are carried
//	 │    │ score < 1   much seen:      │ │ still: score ≥ 2
//	 │    ▼             score < 1/2     ▼ │
//	 └── native ◄─────────────────────────┘
//	  after its time, which doubles with every native verdict in a row
//
// A verdict is about connections that begin after it.
type autoService struct {
	state   ebpf.ServiceState
	until   time.Time // native: sampled again by the first connection from then on
	natives int       // native verdicts in a row
	told    time.Time // the steering
	used    time.Time
	now     autoSums // seen since the last verdict, or since long ago
	last    autoSums // what the last verdict was made of
}

// autoLearner decides per service. It does no I/O and has no clock; calls take
// turns.
type autoLearner struct {
	base     time.Duration // the first time a service is left native
	limit    int
	services map[netip.AddrPort]*autoService
}

func newAutoLearner(base time.Duration) *autoLearner {
	return &autoLearner{base: base, limit: autoServices, services: map[netip.AddrPort]*autoService{}}
}

// learn takes in what a connection to a service did. If tell, the steering must
// be told what to do with connections to it from now on.
func (l *autoLearner) learn(at netip.AddrPort, e autoEvidence, now time.Time) (do ebpf.Service, tell bool) {
	s := l.service(at, now)
	s.used = now
	if s.state == ebpf.ServiceNative && e.begun && !now.Before(s.until) {
		s.state, s.now = ebpf.ServiceSampling, autoSums{} // the steering has begun to sample
	}
	s.now.add(e)
	if next := s.verdict(); next != s.state {
		l.decide(s, next, now)
		tell = true
	}
	if e.begun && s.state != ebpf.ServiceSampling && now.Sub(s.told) >= autoTellAgain {
		tell = true
	}
	if !tell {
		return ebpf.Service{}, false
	}
	s.told = now
	do = ebpf.Service{Addr: at.Addr(), Port: at.Port(), State: s.state}
	if s.state == ebpf.ServiceNative {
		do.TTL = s.until.Sub(now)
	}
	return do, true
}

// verdict is what should be done from now on.
func (s *autoService) verdict() ebpf.ServiceState {
	score := s.now.score()
	switch s.state {
	case ebpf.ServiceCarry:
		if !s.now.plenty(autoSamples, autoCarryWindow) {
			return s.state
		}
		if score < 0.5 {
			return ebpf.ServiceNative
		}
	case ebpf.ServiceNative:
		if !s.now.plenty(autoSamples, 1) {
			return s.state
		}
		if score >= 2 {
			return ebpf.ServiceCarry
		}
	default:
		switch {
		case !s.now.plenty(autoSamples, 1):
			return s.state
		case score >= 1:
			return ebpf.ServiceCarry
		default:
			return ebpf.ServiceNative
		}
	}
	s.last = s.now
	s.now.decay()
	return s.state
}

// decide makes a verdict.
func (l *autoLearner) decide(s *autoService, next ebpf.ServiceState, now time.Time) {
	s.state, s.last = next, s.now
	if next == ebpf.ServiceCarry {
		s.natives = 0
		s.now.decay() // a few small connections do not call it back
		return
	}
	s.now = autoSums{}
	s.until = now.Add(l.base << min(s.natives, autoDoublings))
	s.natives++
}

// service finds or makes a record.
func (l *autoLearner) service(at netip.AddrPort, now time.Time) *autoService {
	s := l.services[at]
	if s == nil {
		if len(l.services) >= l.limit {
			l.evict()
		}
		s = &autoService{state: ebpf.ServiceSampling, used: now}
		l.services[at] = s
	}
	return s
}

// evict forgets the eighth that was used least recently: it walks all of them,
// and must not have to every time.
func (l *autoLearner) evict() {
	all := make([]netip.AddrPort, 0, len(l.services))
	for at := range l.services {
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b netip.AddrPort) int { return l.services[a].used.Compare(l.services[b].used) })
	for _, at := range all[:len(all)/8+1] {
		delete(l.services, at)
	}
}
