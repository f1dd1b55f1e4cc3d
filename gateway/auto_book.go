package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// autoBook gives the learner what it learns from, and the steering what was
// learned. nil: no rule has action auto.
type autoBook struct {
	g       *gateway
	mu      sync.Mutex // guards everything below, and autoSeen of every flow
	learner *autoLearner
}

// autoSeen is how far a flow has been looked at. autoBook.mu guards it.
type autoSeen struct {
	begun, settled bool
	bytes, moves   uint64
	at             time.Time
}

func newAutoBook(g *gateway) *autoBook {
	if !slices.ContainsFunc(g.cfg.Policy, func(r config.Rule) bool { return r.Action == config.ActionAuto }) {
		return nil
	}
	return &autoBook{g: g, learner: newAutoLearner(g.cfg.Fallback.NegativeCache)}
}

// selects reports whether connections of the rule with this number are learned
// from: a client's, of a rule with action auto.
func (b *autoBook) selects(rule int) bool {
	if b == nil {
		return false
	}
	policy := b.g.live.Load().Policy
	return rule >= 0 && rule < len(policy) && policy[rule].Action == config.ActionAuto
}

// look learns from what a flow did since the last look; ended says that it is
// the last one. A flow that is not carried, or not yet, tells nothing.
func (b *autoBook) look(f *flow, ended bool, now time.Time) {
	if b == nil || !f.auto {
		return
	}
	f.mu.Lock()
	carrier := f.carrier
	f.mu.Unlock()
	if carrier == config.CarrierNone {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e := f.seen.evidence(f, ended, now)
	e.carrier = carrier
	if !ended && !e.begun && !e.settled && e.bytes == 0 && e.moves == 0 {
		return
	}
	at := f.tuple.Remote
	b.tellLocked(b.learner.learn(at, e, now))
}

// tellLocked tells the steering what was decided, if anything was.
func (b *autoBook) tellLocked(do ebpf.Service, tell bool) {
	if !tell {
		return
	}
	at := netip.AddrPortFrom(do.Addr, do.Port)
	b.g.log.Debug("auto", "service", at, "state", do.State, "ttl", do.TTL)
	if err := b.g.steer.SetService(do); err != nil {
		b.g.log.Warn("tell what a service is worth", "service", at, "error", err)
	}
}

// evidence moves s forward and returns the difference.
func (s *autoSeen) evidence(f *flow, ended bool, now time.Time) autoEvidence {
	bytes, moves := f.tx.Load()+f.rx.Load(), f.reads.Load()+f.writes.Load()
	e := autoEvidence{bytes: bytes - s.bytes, moves: moves - s.moves, begun: !s.begun}
	if s.at.IsZero() {
		s.at = f.start
	}
	e.seconds = now.Sub(s.at).Seconds()
	e.settled = !s.settled && (ended || now.Sub(f.start) >= autoSettle)
	s.begun, s.settled = true, s.settled || e.settled
	s.bytes, s.moves, s.at = bytes, moves, now
	if ended {
		e.whole = autoRate{conns: 1, bytes: bytes, seconds: now.Sub(f.start).Seconds()}
	}
	return e
}

// tick looks at the flows that go on.
func (b *autoBook) tick(now time.Time) {
	if b == nil {
		return
	}
	for _, f := range b.g.all() {
		if s := f.getState(); s == StateCarrying || s == StateClosing {
			b.look(f, false, now)
		}
	}
	b.compare(now)
}

// compare looks at native connections, while somebody waits for that. Shards
// wait for mu when a flow ends, so it is not held while the table is read.
func (b *autoBook) compare(now time.Time) {
	if !b.waits() {
		return
	}
	list, err := b.g.steer.Services()
	if err != nil {
		b.g.log.Warn("read services", "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		if list[i].Watched > 0 {
			b.tellLocked(b.learner.learnNative(netip.AddrPortFrom(list[i].Addr, list[i].Port), list[i], now))
		}
	}
}

// waits reports whether what the steering counts is of interest to a service.
func (b *autoBook) waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.learner.services {
		if s.waits() {
			return true
		}
	}
	return false
}

// flush forgets all services, here and in the steering.
func (b *autoBook) flush() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.learner.services)
	_, err := b.g.steer.FlushServices()
	return err
}

// list joins what the steering knows with what was learned.
func (b *autoBook) list(now time.Time) []admin.ServiceInfo {
	if b == nil {
		return nil
	}
	steered, err := b.g.steer.Services()
	if err != nil {
		b.g.log.Warn("read services", "error", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	infos := make(map[netip.AddrPort]admin.ServiceInfo)
	for at, s := range b.learner.services {
		infos[at] = s.info(at, now)
	}
	for i := range steered {
		at := netip.AddrPortFrom(steered[i].Addr, steered[i].Port)
		info, learned := infos[at]
		if !learned {
			info = (&autoService{}).info(at, now)
		}
		addSteered(&info, &steered[i])
		infos[at] = info
	}
	out := make([]admin.ServiceInfo, 0, len(infos))
	for at := range infos {
		out = append(out, infos[at])
	}
	slices.SortFunc(out, func(a, b admin.ServiceInfo) int {
		return netip.AddrPortFrom(a.Address, a.Port).Compare(netip.AddrPortFrom(b.Address, b.Port))
	})
	return out
}

// info describes what was learned.
func (s *autoService) info(at netip.AddrPort, now time.Time) admin.ServiceInfo {
	seen := &s.last
	if s.state != ebpf.ServiceCarry && s.state != ebpf.ServiceNative {
		seen = &s.now
	}
	info := admin.ServiceInfo{
		Address: at.Addr(), Port: at.Port(), Verdict: verdictOf(s.state), Connections: seen.conns, Bytes: seen.bytes, Moves: seen.moves,
		BytesPerConnection: quotient(seen.bytes, seen.conns), BytesPerMove: quotient(seen.bytes, seen.moves), Score: seen.score(),
		Why: seen.why(),
	}
	if carried, native := &s.compared[0], &s.compared[1]; native.conns > 0 {
		info.Compared = &admin.ServiceRates{
			CarriedConnections: carried.conns, CarriedBytesPerSecond: carried.perSecond(),
			NativeConnections: native.conns, NativeBytesPerSecond: native.perSecond(),
		}
		info.Why += fmt.Sprintf("; bulk carried at %s/s, native at %s/s", config.Bytes(carried.perSecond()).Rounded(), config.Bytes(native.perSecond()).Rounded())
	}
	if seen.seconds > 0 {
		info.BytesPerSecond = float64(seen.bytes) / seen.seconds
	}
	if s.state == ebpf.ServiceNative {
		info.Reason = negotiate.ReasonNotWorthIt.String()
		info.ExpiresSeconds = max(0, s.until.Sub(now).Seconds())
	}
	return info
}

// addSteered adds what the programs know; what they do counts.
func addSteered(i *admin.ServiceInfo, s *ebpf.Service) {
	i.Native = s.Passed
	switch s.State {
	case ebpf.ServiceSampling:
		i.Verdict, i.Reason, i.SamplesLeft, i.ExpiresSeconds = admin.VerdictSampling, "", s.Tokens, s.TTL.Seconds()
	case ebpf.ServiceNative:
		i.Verdict, i.Reason, i.ExpiresSeconds = admin.VerdictNative, negotiate.ReasonNotWorthIt.String(), s.TTL.Seconds()
	default:
		i.Verdict, i.Reason, i.ExpiresSeconds = verdictOf(s.State), "", 0
	}
}

func verdictOf(s ebpf.ServiceState) admin.ServiceVerdict {
	switch s {
	case ebpf.ServiceCarry:
		return admin.VerdictCarry
	case ebpf.ServiceNative:
		return admin.VerdictNative
	default:
		return admin.VerdictSampling
	}
}

// why says in words what the numbers mean.
func (s *autoSums) why() string {
	if s.conns == 0 && s.bytes == 0 {
		return "nothing carried yet"
	}
	need := config.Bytes(s.price)
	return fmt.Sprintf("%s in %d moves of %d connections; carrying pays from %s on",
		config.Bytes(s.bytes).Rounded(), s.moves, s.conns, need.Rounded())
}
