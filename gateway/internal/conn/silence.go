package conn

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// silence does what an application's kernel would do about a silent peer if the gateway were
// not in between (docs/ARCHITECTURE.md "Silent peers"). The kernel's keepalive probes are
// answered once the peer has answered on the wire leg, or at once if natively the kernel would
// not probe because bytes are in flight. The TCP_USER_TIMEOUT of the application, or the
// tcp_retries2 of its host, is enforced in the kernel's place. silence belongs to the flow's
// shard.
type silence struct {
	options ebpf.SocketOptions
	timeout life.SilenceClock
	flight  life.SilenceClock
	turn    loop.Timer // Flow.silenceTurn; runs while bytes may be in flight
}

// watches reports whether one of the clocks runs.
func (s *silence) watches() bool { return s.options.UserTimeout > 0 || s.kept() }

// kept reports whether the application's kernel sends keepalive probes that bytes in flight
// would suppress. It is false if the application has set TCP_USER_TIMEOUT itself: the kernel
// then ends the connection after that time for unanswered probes and unacknowledged bytes alike.
func (s *silence) kept() bool { return s.options.Kept && !s.options.Own }

func (s *silence) flightPatience() life.Patience { return life.FlightPatience(s.options.UserTimeout) }

// Watched reports what the programs saw of the application's socket.
func (f *Flow) Watched(e ebpf.Event) { f.post(func() { f.watched(e) }) }

func (f *Flow) watched(e ebpf.Event) {
	switch {
	case f.wire == nil:
	case e.Kind == ebpf.EventOptions:
		f.watch(e.Options)
	default:
		f.probed(e)
	}
}

// watch starts or stops enforcing timeouts in place of the application's kernel.
func (f *Flow) watch(o ebpf.SocketOptions) {
	s := f.silence
	if s == nil {
		s = &silence{turn: loop.NewTimer(f.silenceTurn)}
		f.silence = s
	}
	s.options = o
	if o.UserTimeout <= 0 {
		s.timeout = life.SilenceClock{}
	}
	now, st := f.Shard.Now(), f.stood()
	switch {
	case !s.kept():
		s.flight = life.SilenceClock{}
	case s.flight.Begun():
	case o.Sent: // these bytes may have been counted before
		s.flight.Begin(0, st.came, st.heard, now)
	default:
		s.flight.Begin(st.gone, st.came, st.heard, now)
	}
	f.lookForSilence(now)
}

// probed decides when to answer a probe of the application's kernel: now, once the peer has
// answered, or never.
func (f *Flow) probed(e ebpf.Event) {
	answer := func() {
		if err := f.env.Steering.InjectApp(ebpf.ProbeSegment(e.Tuple, e.Seq, e.Ack)); err != nil {
			f.debug("answer a probe", "error", err)
		}
	}
	switch {
	case f.wire.Over(): // both directions ended in order: what is left is on this host
		answer()
	case f.inFlight():
		answer()
		f.wire.Ask(nil)
	default:
		f.wire.Ask(answer)
	}
}

// inFlight reports whether natively the application's kernel would not have probed, because
// it would have unacknowledged bytes.
func (f *Flow) inFlight() bool {
	s := f.silence
	if s == nil || !s.kept() {
		return false
	}
	st := f.stood()
	if !s.flight.Owed(st.gone, st.came, st.heard) && f.holds() {
		s.flight.Owe(st.gone, st.came, st.heard, f.Shard.Now(), s.flightPatience())
	}
	f.rouse()
	return s.flight.Owed(st.gone, st.came, st.heard)
}

// holds reports whether this gateway has bytes of the application, or their end, that the
// peer gateway lacks even though the peer may have been heard: the peer has no room for them,
// or a loss has not been retransmitted yet.
func (f *Flow) holds() bool {
	open := f.core.Tx == life.TxOpen
	switch f.core.By() {
	case life.ByLink:
		return open && f.picked.readable || f.core.Tx == life.TxEnded && !f.written()
	case life.ByRelay:
		return open && f.relay.readable || f.relay.owes()
	case life.ByRaw:
		return open && f.raw.readable || f.raw.out.len() > 0 || !f.written()
	default:
		return false
	}
}

// written reports whether the peer's TCP has acknowledged everything written to the wire leg.
func (f *Flow) written() bool {
	written, _ := f.wire.Vitals()
	return f.wire.Acknowledged(written)
}

// stand is the input of the silence clocks.
type stand struct {
	sent, got uint64 // bytes from and to the application
	gone      uint64 // sent, plus one for the end
	came      uint64 // bytes that came over a lossy path; bytes in memory say nothing about the path
	heard     uint64 // segments heard from the peer
}

// stood returns where the flow stands.
func (f *Flow) stood() stand {
	_, heard := f.wire.Vitals()
	st := stand{sent: f.tx.Load(), got: f.rx.Load(), heard: heard}
	st.gone = st.sent
	if f.core.Tx != life.TxOpen {
		st.gone++
	}
	if f.picked != nil && f.picked.Lossy {
		st.came = st.got
	}
	return st
}

// sent counts bytes read from the application.
func (f *Flow) sent(n int) {
	f.tx.Add(uint64(n))
	f.rouse()
}

// rouse arms the timer that checks a watched flow until nothing is in flight.
func (f *Flow) rouse() {
	if s := f.silence; s != nil && s.watches() && !s.turn.Pending() {
		f.Shard.SetTimer(&s.turn, f.Shard.Now().Add(life.SilenceTurn))
	}
}

func (f *Flow) silenceTurn() {
	f.Shard.WorksFor(f)
	f.lookForSilence(f.Shard.Now())
}

// lookForSilence checks the clocks of the flow, and asks its peer for a sign of life or ends
// the flow.
func (f *Flow) lookForSilence(now time.Time) {
	s := f.silence
	if !s.watches() || f.core.Ended() || f.wire.Over() {
		return
	}
	st := f.stood()
	var ask, over, busy bool
	if s.options.UserTimeout > 0 {
		ask, over = s.timeout.Look(st.sent, st.got, st.heard, now, life.TimeoutPatience(s.options.UserTimeout))
		busy = !s.timeout.Idle(st.sent)
	}
	if over {
		f.debug("peer silent for the application's timeout")
		f.abort(negotiate.ReasonPeerDead, false)
		return
	}
	if s.kept() {
		asks, _ := s.flight.Look(st.gone, st.came, st.heard, now, s.flightPatience())
		ask = ask || asks
		busy = busy || !s.flight.Idle(st.gone)
	}
	if ask {
		f.wire.Ask(nil)
	}
	if busy {
		f.rouse()
	}
}

const (
	// awakeTicks bounds, in ticks of one second, how long the wire leg of a busy flow stays
	// quiet. Firewalls forget idle connections after some minutes.
	awakeTicks = 60
	// awakeFew is the number of connections below which each is looked at on every tick.
	// Beyond it the connections are spread over several ticks: if all wire legs spoke at
	// once, they would starve the shards of this gateway and of its peer.
	awakeFew = 32
)

// Awake keeps the firewalls on the path from forgetting the wire legs of busy flows. Natively
// the data itself does that. The data of a flow on a device takes another path, so its wire
// leg would be forgotten although the connection is never idle, and END and HAVE would be
// lost or answered by a reset. A flow that is idle is forgotten as it would be natively. The
// methods of Awake must be called from one goroutine.
type Awake struct {
	ticks uint64
	moved map[uint64]uint64 // by flow ID: bytes both ways at the last look
}

// Tick is called every second with all current connections.
func (a *Awake) Tick(all []*Flow) {
	for _, f := range a.tick(all) {
		f.post(f.ask)
	}
}

// tick returns the flows whose wire legs should speak: those whose turn it is and that moved
// bytes since their last turn.
func (a *Awake) tick(all []*Flow) (speak []*Flow) {
	a.ticks++
	before := a.moved
	if a.ticks%awakeTicks == 1 { // forget flows that have ended
		a.moved = make(map[uint64]uint64, len(all))
	}
	turns := min(awakeTicks, 1+uint64(len(all))/awakeFew)
	for _, f := range all {
		last, known := before[f.ID]
		if known && (f.ID+a.ticks)%turns != 0 {
			a.moved[f.ID] = last
			continue
		}
		if c := f.view().carrier; c == report.CarrierNone || c == report.CarrierRelay {
			continue // not carried, or carried by the wire leg itself
		}
		now := f.tx.Load() + f.rx.Load()
		if a.moved[f.ID] = now; known && now != last {
			speak = append(speak, f)
		}
	}
	return speak
}
