package cm

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// flight is a datagram in the network.
type flight struct {
	from *side
	d    datagram
	at   time.Time // when it arrives at the latest
}

// model drives two sides over a network that loses, repeats, delays and
// reorders what it carries, and knows what each attempt was.
type model struct {
	*world
	rt       *rapid.T
	flights  []flight
	dialed   []*conn
	requests map[uint32][]*conn // by the QPN of the dialer, which is unique
	accepted map[*conn]uint32   // the QPN it was accepted with
	rejected map[*conn]bool
	ended    map[*conn]bool      // by us
	seen     map[*conn]time.Time // when it began
	gone     map[*conn]time.Time // when it was over
	nextQPN  uint32
}

// maxDelay is how long the network keeps a datagram; TIMEWAIT lasts longer.
const maxDelay = 400 * time.Millisecond

func (m *model) collect() {
	for _, s := range []*side{m.a, m.b} {
		for _, d := range m.take(s) {
			m.flights = append(m.flights, flight{s, d, m.now.Add(maxDelay)})
		}
	}
}

func (m *model) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(m.rt, label) }

func (m *model) remove(i int) flight {
	f := m.flights[i]
	m.flights[i] = m.flights[len(m.flights)-1]
	m.flights = m.flights[:len(m.flights)-1]
	return f
}

func (m *model) arrive(f flight) {
	m.deliver(f.from, f.d)
	m.collect()
}

// tick lets time pass without keeping any datagram for too long.
func (m *model) tick(d time.Duration) {
	m.pass(d)
	for i := 0; i < len(m.flights); {
		if m.now.After(m.flights[i].at) {
			m.remove(i)
			continue
		}
		i++
	}
	m.collect()
}

// take all requests that listeners have.
func (m *model) serve() {
	for _, s := range []*side{m.a, m.b} {
		for _, l := range s.listeners {
			for x := l.take(); x != nil; x = l.take() {
				m.requests[x.req.QPN] = append(m.requests[x.req.QPN], x)
			}
		}
	}
	m.collect()
}

// some returns a connection of either side in one of the states.
func (m *model) some(states ...state) *conn {
	var all []*conn
	for _, x := range m.dialed {
		all = append(all, x)
		all = append(all, m.requests[x.req.QPN]...)
	}
	var in []*conn
	for _, x := range all {
		for _, s := range states {
			if x.state == s {
				in = append(in, x)
			}
		}
	}
	if len(in) == 0 {
		return nil
	}
	return in[m.pick("conn", len(in))]
}

func (m *model) actions() map[string]func(*rapid.T) {
	on := func(do func()) func(*rapid.T) {
		return func(*rapid.T) { do(); m.collect(); m.check() }
	}
	return map[string]func(*rapid.T){
		"dial": on(func() {
			if len(m.dialed) == 6 {
				return
			}
			m.nextQPN++
			m.dialed = append(m.dialed, m.request([]*side{m.a, m.b}[m.pick("side", 2)], m.nextQPN))
		}),
		"serve": on(m.serve),
		"accept": on(func() {
			if x := m.some(stateReqRcvd); x != nil && !x.queued {
				m.nextQPN++
				require.NoError(m.t, x.accept(m.now, &REP{QPN: m.nextQPN}))
				m.accepted[x] = m.nextQPN
			}
		}),
		"reject": on(func() {
			if x := m.some(stateReqRcvd); x != nil && !x.queued {
				require.NoError(m.t, x.refuse(RejectConsumerDefined, nil, nil))
				m.rejected[x] = true
			}
		}),
		"ready": on(func() {
			if x := m.some(stateRepRcvd); x != nil {
				require.NoError(m.t, x.ready(nil))
			}
		}),
		"disconnect": on(func() {
			if x := m.some(stateEstablished); x != nil {
				m.ended[x] = true
				x.disconnect(m.now, ErrClosed)
			}
		}),
		"abort": on(func() {
			if x := m.some(stateReqSent, stateRepRcvd, stateReqRcvd, stateRepSent); x != nil {
				m.ended[x] = true
				x.abort(m.now, ErrClosed)
			}
		}),
		"deliver": on(func() {
			if len(m.flights) > 0 {
				m.arrive(m.remove(m.pick("flight", len(m.flights))))
			}
		}),
		"duplicate": on(func() {
			if len(m.flights) > 0 {
				m.arrive(m.flights[m.pick("flight", len(m.flights))])
			}
		}),
		"lose": on(func() {
			if len(m.flights) > 0 {
				m.remove(m.pick("flight", len(m.flights)))
			}
		}),
		"wait":       on(func() { m.tick(200 * time.Millisecond) }),
		"wait, long": on(func() { m.tick(5 * time.Second) }),
	}
}

// turnedAway tells whether its own side refused a request before it was accepted,
// and forgot it: a copy of the REQ is a request again.
func turnedAway(y *conn) bool {
	return y.state == stateClosed && y.rep == nil && (errors.Is(y.err, ErrClosed) || errors.Is(y.err, ErrTimeout))
}

// check holds at any time.
func (m *model) check() {
	for _, s := range []*side{m.a, m.b} {
		for _, x := range s.conns {
			if _, ok := m.seen[x]; !ok {
				m.seen[x] = m.now
			}
			if _, ok := m.gone[x]; !ok && x.err != nil {
				m.gone[x] = m.now
			}
		}
	}
	for _, x := range m.dialed {
		passive := m.requests[x.req.QPN]
		live := 0
		for i, y := range passive {
			if i > 0 && !turnedAway(passive[i-1]) {
				before, ok := m.gone[passive[i-1]]
				require.True(m.t, ok && m.seen[y].Sub(before) > maxDelay, "one datagram, two requests")
			}
			require.Equal(m.t, x.id, y.remoteID)
			require.Equal(m.t, x.req.PSN, y.req.PSN)
			if y.state <= stateEstablished {
				live++
			}
			if y.complete {
				require.True(m.t, x.rep != nil && x.rep.QPN == m.accepted[y], "established with someone who did not agree")
			}
		}
		require.LessOrEqual(m.t, live, 1, "one attempt, two requests")
		if x.rep != nil {
			var from *conn
			for _, y := range passive {
				if y.id == x.remoteID {
					from = y
				}
			}
			require.NotNil(m.t, from, "a reply of nobody")
			require.Equal(m.t, m.accepted[from], x.rep.QPN)
			require.EqualValues(m.t, m.other(m.sideOf(x)).CAGUID, x.guid)
		}
	}
	for _, s := range []*side{m.a, m.b} {
		require.Zero(m.t, s.stats.Stale)
		for _, x := range s.conns {
			require.NotEqual(m.t, stateClosed, x.state)
			waits := x.state != stateRepRcvd && x.state != stateEstablished
			require.Equal(m.t, waits, x.timer.Pending(), "%v", x.state)
			require.Equal(m.t, x.state >= stateDreqSent, x.err != nil, "%v", x.state)
		}
		require.LessOrEqual(m.t, len(s.qps), len(s.conns))
		require.LessOrEqual(m.t, len(s.peers), len(s.conns))
	}
}

func (m *model) sideOf(x *conn) *side {
	if x.core == m.a.core {
		return m.a
	}
	return m.b
}

// settle lets the network work again and both sides come to an end.
func (m *model) settle() {
	for range 60 {
		for len(m.flights) > 0 {
			m.arrive(m.remove(0))
		}
		m.serve()
		for _, x := range m.dialed {
			if x.state == stateRepRcvd {
				require.NoError(m.t, x.ready(nil))
			}
			for _, y := range m.requests[x.req.QPN] {
				if y.state == stateReqRcvd {
					m.nextQPN++
					require.NoError(m.t, y.accept(m.now, &REP{QPN: m.nextQPN}))
					m.accepted[y] = m.nextQPN
				}
			}
		}
		m.collect()
		m.check()
		m.tick(5 * time.Second)
	}
}

// undisturbed tells whether neither side ended or refused the attempt.
func (m *model) undisturbed(x *conn) bool {
	for _, y := range append(m.requests[x.req.QPN], x) {
		if m.ended[y] || m.rejected[y] {
			return false
		}
	}
	return true
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		m := &model{
			world: w, rt: rt, requests: map[uint32][]*conn{}, accepted: map[*conn]uint32{}, rejected: map[*conn]bool{},
			ended: map[*conn]bool{}, seen: map[*conn]time.Time{}, gone: map[*conn]time.Time{}, nextQPN: 0x10,
		}
		m.listen(w.a, 8)
		m.listen(w.b, 8)
		begin := m.now
		rt.Repeat(m.actions())
		// Up to this time no side gives up for want of answers.
		patient := m.now.Sub(begin) < 60*time.Second
		m.settle()

		for _, x := range m.dialed {
			if x.state == stateEstablished {
				require.NoError(m.t, x.err)
				continue
			}
			require.False(m.t, patient && m.undisturbed(x), "an attempt that nobody ended came to nothing")
			require.Equal(m.t, stateClosed, x.state)
			var rejected *RejectError
			require.True(m.t, m.ended[x] || errors.As(x.err, &rejected) || errors.Is(x.err, ErrDisconnected) || errors.Is(x.err, ErrTimeout))
		}
		var last []*conn
		// A side that still believes in a connection can end it.
		for _, s := range []*side{m.a, m.b} {
			for _, x := range s.conns {
				require.Equal(m.t, stateEstablished, x.state)
				last = append(last, x)
				x.disconnect(m.now, ErrClosed)
			}
		}
		m.collect()
		m.settle()
		for _, x := range last {
			require.False(m.t, x.timedOut, "a disconnection nobody answered")
		}
		m.requireEmpty()
	})
}
