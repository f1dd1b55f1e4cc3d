package gateway

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

var (
	_ Control       = (*gateway)(nil)
	_ MetricsSource = (*gateway)(nil)
)

// Status implements Control.
func (g *gateway) Status() Status {
	snap := g.Snapshot()
	st := Status{
		Mode: snap.Mode, UptimeSeconds: time.Since(g.started).Seconds(),
		Flows: snap.Flows, FlowsTotal: snap.FlowsTotal, BytesTotal: snap.BytesTotal,
		FallbacksTotal: map[string]uint64{},
		Memory:         MemoryUse{UsedBytes: g.memoryUsed(), LimitBytes: uint64(g.cfg.Limits.Memory)},
		Peers:          len(g.Peers()),
		FlowLimit:      FlowLimit{Now: snap.Bounds.Flows, Configured: g.cfg.Limits.MaxFlows},
		LogDropped:     snap.Bounds.LogDropped,
	}
	for _, fb := range snap.Fallbacks {
		st.FallbacksTotal[fb.Reason] += fb.Count
	}
	st.BlockedLegs = g.blockedLegs()
	if len(st.BlockedLegs) > 0 {
		st.Degraded = append(st.Degraded, negotiate.ReasonAppLegBlocked.String())
	}
	if g.noDatagrams || slices.ContainsFunc(g.absent, func(d DeviceInfo) bool { return d.State == DeviceFailed }) {
		st.Degraded = append(st.Degraded, negotiate.ReasonDeviceFailed.String())
	}
	return st
}

// blockedLegs lists where connections are native because legs do not reach
// applications.
func (g *gateway) blockedLegs() (list []BlockedLegs) {
	for _, b := range g.steer.BlockedLegs() {
		family := "ipv4"
		if b.IPv6 {
			family = "ipv6"
		}
		list = append(list, BlockedLegs{Device: b.Device, Family: family, At: string(b.Way)})
	}
	if g.legless.Load() {
		list = append(list, BlockedLegs{At: "keeper"})
	}
	return list
}

// Stats implements Control.
func (g *gateway) Stats() Stats {
	snap := g.Snapshot()
	tcp := ProtoStats{Flows: map[Carrier]FlowCount{}, Bytes: snap.BytesTotal, Native: map[string]uint64{}}
	for c, n := range snap.FlowsTotal {
		tcp.Flows[c] = FlowCount{Now: snap.Flows[c], Total: n}
	}
	for _, fb := range snap.Fallbacks {
		tcp.Native[fb.Reason] += fb.Count
	}
	return Stats{
		StartedAt: g.started.Round(0).UTC(), Seconds: time.Since(g.started).Seconds(),
		Protocols: map[Proto]ProtoStats{ProtoTCP: tcp, ProtoUDP: snap.UDP}, Datagrams: snap.Datagrams,
	}
}

func (g *gateway) memoryUsed() uint64 { return uint64(g.pool.Stats().Used) }

// Conns implements Control.
func (g *gateway) Conns(q ConnQuery) []ConnInfo {
	var list []ConnInfo
	if q.Closed {
		list = append(g.closed.List(), g.udp.closed.List()...)
	} else {
		now := time.Now()
		for _, f := range g.all() {
			list = append(list, f.info(now))
		}
		list = append(list, g.dgrams.Load().infos()...)
	}
	if q.All {
		list = append(append(list, g.native.List()...), g.udp.native.List()...)
	}
	slices.SortStableFunc(list, func(a, b ConnInfo) int {
		switch {
		case a.ID > b.ID:
			return -1
		case a.ID < b.ID:
			return 1
		default:
			return 0
		}
	})
	return list
}

// Peers implements Control.
func (g *gateway) Peers() []PeerInfo {
	flows := map[netip.Addr]int{}
	for _, f := range g.all() {
		if s := f.getState(); s == StateCarrying || s == StateClosing {
			flows[f.tuple.Remote.Addr()]++
		}
	}
	g.dgrams.Load().eachFlow(func(f *dgramFlow) { flows[f.tuple.Remote.Addr()]++ })
	var list []PeerInfo
	use := g.peerUse()
	for a, carriers := range g.peers.carriers() {
		list = append(list, PeerInfo{Address: a, State: PeerCapable, Carriers: carriers, Flows: flows[a], Use: use[a]})
		delete(use, a)
	}
	remembered, err := g.steer.Peers()
	if err != nil {
		g.log.Warn("read remembered peers", "error", err)
	}
	for i := range remembered {
		info := peerInfo(&remembered[i])
		if info.Port == 0 {
			info.Use = use[info.Address]
			delete(use, info.Address)
		}
		list = append(list, info)
	}
	for a, u := range use { // of whom nothing else is known
		if u.Begun > 0 {
			list = append(list, PeerInfo{Address: a, State: PeerUnknown, Flows: flows[a], Use: u})
		}
	}
	slices.SortFunc(list, func(a, b PeerInfo) int {
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return list
}

func peerInfo(p *ebpf.Peer) PeerInfo {
	info := PeerInfo{Address: p.Addr, Port: p.Port, State: PeerUnknown, ExpiresSeconds: p.TTL.Seconds()}
	if p.TTL <= 0 {
		return info
	}
	r := negotiate.Reason(p.Reason)
	info.Reason = r.String()
	switch r {
	case negotiate.ReasonOptionBlackholed:
		info.State = PeerBlackholed
	default:
		info.State = PeerIncapable
	}
	return info
}

// Devices implements Control.
func (g *gateway) Devices() []DeviceInfo {
	var list []DeviceInfo
	for _, fb := range g.fabrics {
		list = append(list, fb.devices()...)
	}
	return append(list, g.absent...)
}

// FlushPeers implements Control.
func (g *gateway) FlushPeers() (int, error) {
	g.peers.flush()
	g.rests.flush()
	g.dgrams.Load().flush()
	n, err := g.steer.FlushPeers()
	return n, errors.Join(err, g.auto.flush())
}

// Services implements Control.
func (g *gateway) Services() []ServiceInfo { return g.auto.list(time.Now()) }

// SetOff implements Control.
func (g *gateway) SetOff(off bool) error {
	if err := g.steer.SetOff(off); err != nil {
		return err
	}
	g.off.Store(off)
	if off {
		g.dgrams.Load().quiesce(negotiate.ReasonOff)
	} else {
		g.dgrams.Load().resume()
	}
	return nil
}

// ResetFlows implements Control.
func (g *gateway) ResetFlows() (n int) {
	end := time.Now().Add(500 * time.Millisecond)
	for now := time.Now(); now.Before(end); now = time.Now() {
		left := 0
		for _, f := range g.all() {
			if f.hasEnded() {
				continue
			}
			left++
			if f.getState() >= StateCarrying {
				n++
			}
			f.drain(negotiate.ReasonOff)
		}
		if left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // what is being adopted has no handshake yet
	}
	return n
}

// Try implements Control.
func (g *gateway) Try(t Trial) (end func(), err error) { return g.trials.begin(t) }

func (g *gateway) mode() Mode {
	if g.off.Load() {
		return ModeOff
	}
	return g.live.Load().Mode
}

// Snapshot implements MetricsSource.
func (g *gateway) Snapshot() Snapshot {
	s := Snapshot{
		Mode: g.mode(), Flows: map[Carrier]int{}, FlowsTotal: map[Carrier]uint64{},
		BytesTotal: map[Carrier]ByteCount{}, Handshakes: map[Carrier]HistogramSnapshot{},
		Panics:      g.panics.count(),
		MemoryLimit: uint64(g.cfg.Limits.Memory), Peers: map[PeerState]int{}, Services: map[ServiceVerdict]int{},
	}
	s.Heartbeat = g.beat.load()
	g.snapshotCounters(&s)
	g.snapshotFlows(&s)
	g.dgrams.Load().snapshot(&s)
	s.Bounds = Bounds{Flows: g.flowLimit(), LogDropped: g.logDropped()}
	s.Bounds.wireBounds(g.stack.Stats())
	g.snapshotSteering(&s)
	s.Devices = g.Devices()
	ps := g.pool.Stats()
	s.Memory = map[string]uint64{
		"reserved": uint64(ps.Reserved), "used": uint64(ps.Used), "quarantined": uint64(ps.Quarantined),
	}
	s.SharesRefused = g.sharesRefused()
	for _, p := range g.Peers() {
		s.Peers[p.State]++
	}
	for _, svc := range g.Services() {
		s.Services[svc.Verdict]++
	}
	return s
}

func (g *gateway) snapshotCounters(s *Snapshot) {
	g.count.mu.Lock()
	defer g.count.mu.Unlock()
	maps.Copy(s.FlowsTotal, g.count.flows)
	maps.Copy(s.BytesTotal, g.count.bytes)
	s.Stalls = maps.Clone(g.count.stalls)
	for c, h := range g.count.handshake {
		s.Handshakes[c] = h.Snapshot()
	}
	for k, n := range g.count.demotions {
		k.Count = n
		s.Demotions = append(s.Demotions, k)
	}
	for k, n := range g.count.fallbacks {
		s.addFallback(k.reason, k.side, n)
	}
}

func (g *gateway) snapshotFlows(s *Snapshot) {
	for _, f := range g.all() {
		info := f.info(time.Now())
		if info.Carrier == CarrierNone {
			continue
		}
		s.Flows[info.Carrier]++
		b, n := s.BytesTotal[info.Carrier], f.carriedBytes()
		b.Tx += n.Tx
		b.Rx += n.Rx
		s.BytesTotal[info.Carrier] = b
	}
}

func (g *gateway) snapshotSteering(s *Snapshot) {
	c, err := g.steer.Counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
		return
	}
	for side, byReason := range c.Native {
		for r, n := range byReason {
			reason, at := negotiate.Reason(r), sideOf(ebpf.Side(side))
			udp := min(n, g.count.ofDatagrams(reason, at)) // the programs count both together
			if udp > 0 {
				s.UDP.Native[reason.String()] += udp
			}
			if n > udp {
				s.addFallback(reason, at, n-udp)
			}
		}
	}
	s.Bounds.Datapath = c.Stats
	g.live.Load().addDecisions(s, c.Decided)
	maps, err := g.steer.MapUsage()
	if err != nil {
		g.log.Warn("read maps", "error", err)
		return
	}
	for _, m := range maps {
		s.Maps = append(s.Maps, MapUse{Map: m.Name, Entries: uint64(m.Entries), Capacity: uint64(m.Capacity)})
	}
}

func (s *Snapshot) addDecision(a Action, rule string, n uint64) {
	if n == 0 {
		return
	}
	for i := range s.Decisions {
		if s.Decisions[i].Action == a && s.Decisions[i].Rule == rule {
			s.Decisions[i].Count += n
			return
		}
	}
	s.Decisions = append(s.Decisions, DecisionCount{Action: a, Rule: rule, Count: n})
}

// addFallback adds to the series of one reason and side: the programs and the
// gateway can both decide for the same reason.
func (s *Snapshot) addFallback(r negotiate.Reason, side Side, n uint64) {
	name := r.String()
	for i := range s.Fallbacks {
		if s.Fallbacks[i].Reason == name && s.Fallbacks[i].Side == side {
			s.Fallbacks[i].Count += n
			return
		}
	}
	s.Fallbacks = append(s.Fallbacks, FallbackCount{Reason: name, Side: side, Count: n})
}
