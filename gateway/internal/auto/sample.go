package auto

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

const (
	// autoShare is how much of the time of native connections samples may cost, as far
	// as that can be foreseen. The promise is 3 %.
	autoShare = 0.025
	// autoSetup is what the begin of a sample costs, in seconds.
	autoSetup = 0.02
	// autoAsk is how long a sample is waited for, at first, before another is asked for.
	autoAsk = 30 * time.Second
	// autoMessage is the mean length below which each segment is a message of its own.
	autoMessage = 512
	// autoLargest is more than programs read or write at a time.
	autoLargest = 256 << 10
)

// looks are what native connections have shown that ended while the programs looked at
// them. That costs them nothing.
type looks struct {
	conns, bytes, segments uint64
	seconds                float64
}

func (l *looks) add(o looks) {
	l.conns, l.bytes, l.segments, l.seconds = l.conns+o.conns, l.bytes+o.bytes, l.segments+o.segments, l.seconds+o.seconds
}

// best is more than the score of these connections would have been, by any carrier. How
// many reads and writes they made is not known, unless they were small.
func (l *looks) best() float64 {
	price, moves := autoPrices[config.CarrierHW], l.bytes/autoLargest
	if l.bytes < l.segments*autoMessage {
		moves = l.segments
	}
	return quotient(l.bytes, l.conns*price.conn+moves*price.move)
}

// mean is how long a connection lasts, in seconds.
func (l *looks) mean() float64 { return l.seconds / float64(max(1, l.conns)) }

// moved is what a connection moves.
func (l *looks) moved() float64 { return quotient(l.bytes, l.conns) }

// look takes in what the programs have counted since the last time.
func (s *service) look(c *ebpf.Service, now time.Time) {
	o := looks{
		conns: c.Ended - s.counted.Ended, bytes: c.Moved - s.counted.Moved, segments: c.Segments - s.counted.Segments,
		seconds: (c.Took - s.counted.Took).Seconds(),
	}
	if o.conns > 0 {
		s.used = now
	}
	s.looked.add(o)
	s.account.earned += o.seconds
}

// busy is for how much of its time a carried connection has moved bytes: it would have to be
// slower than any carrier to take the rest for them. Its program was silent then, which
// costs nothing.
func (l *looks) busy(e evidence) float64 {
	if l.bytes == 0 {
		return e.seconds
	}
	return min(e.seconds, float64(e.bytes)/float64(l.bytes)*l.seconds/(1-mostLost))
}

// account is what samples of a service may cost: a share of the time of its native
// connections. All is in seconds of connections.
type account struct {
	earned   float64 // native connections
	spent    float64 // by how much samples took longer
	open     float64 // samples, not charged yet
	slower   float64 // the part of the time of carried ones that is lost, by the last comparison
	measured bool
}

// carried takes in time of a sample.
func (a *account) carried(seconds float64) { a.open += seconds }

// expect takes in which part of their time carried connections lose.
func (a *account) expect(lost float64) { a.slower, a.measured = max(0, lost), true }

// settle charges for the samples since the last time.
func (a *account) settle(lost float64) {
	a.expect(lost)
	a.spent, a.open = a.spent+a.open*a.slower, 0
}

// affords reports whether another sample can be paid for beside those that go on, each of
// which would take so long natively and would lose this part of its time.
func (a *account) affords(flying int, seconds, lost float64) bool {
	return a.earned*autoShare-a.spent-a.open*lost >= float64(flying+1)*(autoSetup+seconds*lost/(1-lost))
}

// mostLost bounds what a sample is expected to lose: what is given up for ever would
// never be found to have changed.
const mostLost = 0.9

// lostBy is the part of its time that a connection loses that is carried, by what is
// known before: [config.CarrierNone] is of a peer that is not.
func lostBy(c config.Carrier) float64 {
	switch c {
	case config.CarrierHW, config.CarrierIB:
		return 0
	case config.CarrierShm:
		return 2. / 3
	default:
		return 0.8
	}
}

// samples are the ones that a service is sampled by.
type samples struct {
	flying  int       // are carried now
	settled int       // of them
	asked   int       // were asked for since one has ended
	from    time.Time // none is asked for before it
}

// took takes in that a sample has begun, has settled, once in its life, or has ended. One
// that goes on when it has settled may go on for ever: it is not waited for, and another is
// asked for later.
func (s *samples) took(e evidence, now time.Time) {
	if e.begun {
		s.flying++
	}
	if e.settled {
		s.settled++
	}
	switch {
	case e.whole.conns > 0:
		s.flying, s.settled = max(0, s.flying-1), max(0, s.settled-1)
		s.asked, s.from = 0, now
	case e.settled:
		s.from = now.Add(autoAsk << min(max(0, s.asked-1), autoDoublings))
	}
}

// foresee tells from native connections whether samples can show anything, and asks for
// one when that costs the service little enough: after short connections soon, after long
// ones late.
func (l *learner) foresee(s *service, peer netip.Addr, c *ebpf.Service, now time.Time) {
	if s.state != ebpf.ServiceSampling || c.State != ebpf.ServiceSampling || c.Tokens > 0 || s.samples.flying > s.samples.settled {
		return
	}
	carrier := l.carrierOf(peer)
	lost := lostBy(carrier)
	if s.account.measured {
		lost = min(s.account.slower, mostLost)
	}
	stranger := l.paces && carrier == config.CarrierNone && s.samples.asked == 0 // one that may be near
	switch {
	case s.looked.best() < 1 && !stranger:
		if s.looked.conns >= Samples && l.lookedLong(s, now) {
			l.decide(s, ebpf.ServiceNative, now)
		}
	case s.looked.conns > 0 && !now.Before(s.samples.from) && s.account.affords(s.samples.flying, s.looked.mean(), lost):
		s.samples.from = now.Add(autoAsk << min(s.samples.asked, autoDoublings))
		s.samples.asked++
		s.news = true
	}
}
