package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/internal/report"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/negotiate"
)

var (
	_ admin.Control       = (*gateway)(nil)
	_ admin.MetricsSource = (*gateway)(nil)
)

// Status implements admin.Control.
func (g *gateway) Status() admin.Status {
	snap, failing := g.snapshot()
	st := snap.Status(g.started)
	g.tellHealth(&st)
	if !g.off.Load() {
		live := g.live.Load()
		rules := g.observed.Report(live.Config, g.rollout.Share(), snap.Decisions, policy.NoRule).Rules
		st.Notes = append(st.Notes, report.IdleRules(rules, st.InProcess.ConnectionsTotal == 0, time.Since(live.since))...)
	}
	if g.carries() {
		st.Notes = append(st.Notes, failing.Notes(time.Now())...)
	}
	return st
}

// failing finds the services that stay native.
func (g *gateway) failing() report.Failing {
	var live []admin.ConnInfo
	now := time.Now()
	for _, f := range g.all() {
		if f.Carried() {
			live = append(live, f.Info(now))
		}
	}
	return report.FindFailing(live, g.env.Closed.List(), g.env.Native.List())
}

// tellHealth adds what of the configuration is not done, and why.
func (g *gateway) tellHealth(st *admin.Status) {
	st.BlockedLegs = report.BlockedLegs(g.steer.BlockedLegs(), g.legless.Load())
	if len(st.BlockedLegs) > 0 {
		st.Degraded = append(st.Degraded, negotiate.ReasonAppLegBlocked.String())
	}
	if g.host.Devices != nil {
		_, st.Notes = g.host.Devices()
	}
	if len(st.Notes) > 0 {
		st.Degraded = append(st.Degraded, negotiate.ReasonAddress.String())
	}
	if g.carries() {
		if note := g.legs.Note(); note != "" {
			st.Notes = append(st.Notes, note)
		}
	}
	if why := g.host.unsteered; why != nil {
		st.Degraded = append(st.Degraded, admin.NoSteering)
		st.Notes = append(st.Notes, fmt.Sprintf("steering: %v: only connections between programs with the library leave the kernel's way; steering: off says that this is wanted", why))
	}
	g.reloads.Tell(st)
	g.guard.Tell(st)
	failed, active := report.Devices(st, g.devices())
	if err := g.noDatagrams.Load(); err != nil {
		failed = true
		st.Notes = append(st.Notes, fmt.Sprintf("datagram_port: no datagram is carried: %v: free the port", *err))
	}
	if !active && g.carries() && len(g.cfg.Carriers) > 0 && !g.stopping.Load() {
		failed = true
		st.Notes = append(st.Notes, fmt.Sprintf("carriers: none of %v works on this host, and every connection stays native: smcgw devices tells why", g.cfg.Carriers))
	}
	if failed {
		st.Degraded = append(st.Degraded, negotiate.ReasonDeviceFailed.String())
	}
}

// Stats implements admin.Control.
func (g *gateway) Stats() admin.Stats {
	snap := g.Snapshot()
	return snap.Stats(g.started)
}

// Conns implements admin.Control.
func (g *gateway) Conns(q admin.ConnQuery) []admin.ConnInfo {
	var list []admin.ConnInfo
	if q.Live() {
		list = append(g.carriedConns(q), g.dgrams.Load().Flows()...)
	}
	list = append(list, g.host.promotion.Conns(q)...)
	if q.Ended() {
		list = append(append(list, g.env.Closed.List()...), g.udp.closed.List()...)
	}
	if q.Natives() {
		list = append(append(list, g.env.Native.List()...), g.udp.native.List()...)
	}
	if q.Programs && g.host.Owners != nil {
		g.tellPrograms(list, q.Filter)
	}
	slices.SortStableFunc(list, func(a, b admin.ConnInfo) int { return cmp.Compare(b.ID, a.ID) })
	return list
}

// tellPrograms adds whose the sockets are, of connections that are asked for and may have one.
func (g *gateway) tellPrograms(list []admin.ConnInfo, of admin.ConnFilter) {
	sockets := map[process.Socket][]*admin.ConnInfo{}
	for i := range list {
		c := &list[i]
		if s := (process.Socket{UDP: c.Proto == string(config.ProtoUDP), Local: c.Local, Remote: c.Remote}); c.Program == nil && c.End != admin.EndClosed && c.End != admin.EndAborted && of.Matches(c) {
			sockets[s] = append(sockets[s], c)
		}
	}
	owners, err := g.host.Owners(slices.Collect(maps.Keys(sockets)))
	if err != nil {
		g.log.Warn("look for the programs of connections", "error", err)
	}
	for s, o := range owners {
		for _, c := range sockets[s] {
			c.Program = &admin.Program{Name: o.Program, PID: o.PID, UID: o.UID, Cgroup: o.Cgroup}
		}
	}
}

// Feed implements admin.Control. What was missed so far was missed by earlier readers.
func (g *gateway) Feed() *admin.Feed {
	g.tellMissed()
	return g.feed
}

// detailBatch is how many connections a shard describes in one turn.
const detailBatch = 64

// carriedConns describes the flows of the table that are asked for, with their queue pairs
// if details are wanted: their shards are asked for those, a few at a time.
func (g *gateway) carriedConns(q admin.ConnQuery) []admin.ConnInfo {
	flows, now := g.all(), time.Now()
	var list []admin.ConnInfo
	if q.Filter == (admin.ConnFilter{}) {
		list = make([]admin.ConnInfo, 0, len(flows)+2*admin.HistorySize)
	}
	byShard := map[*loop.Shard][]int{}
	for _, f := range flows {
		if info := f.Info(now); q.Filter.Matches(&info) {
			flows[len(list)] = f
			byShard[f.Shard] = append(byShard[f.Shard], len(list))
			list = append(list, info)
		}
	}
	if !q.Details {
		return list
	}
	for s, of := range byShard {
		for batch := range slices.Chunk(of, detailBatch) {
			s.Call(func() {
				for _, i := range batch {
					list[i].Pair = flows[i].Pair()
				}
			})
		}
	}
	return list
}

// Peers implements admin.Control.
func (g *gateway) Peers() []admin.PeerInfo {
	list, _ := g.peersNow()
	return list
}

// peersNow lists the peers, and what of them stays native.
func (g *gateway) peersNow() ([]admin.PeerInfo, report.Failing) {
	flows := map[netip.Addr]int{}
	for _, f := range g.all() {
		if f.Carried() {
			flows[f.Tuple.Remote.Addr()]++
		}
	}
	g.dgrams.Load().CountFlows(flows)
	remembered, err := g.steer.Peers()
	if err != nil {
		g.log.Warn("read remembered peers", "error", err)
	}
	list := report.Peers(g.peers.Known(time.Now()), remembered, flows, report.PeerUse(g.peers, g.pool, g.env.Fabrics))
	failing := g.failing()
	failing.Tell(list)
	return list, failing
}

// Devices implements admin.Control.
func (g *gateway) Devices() admin.DeviceList {
	list := admin.DeviceList{Devices: g.devices()}
	if g.host.RDMA != nil {
		var err error
		if list.RDMA, err = g.host.RDMA(); err != nil {
			g.log.Warn("look for RDMA adapters", "error", err)
		}
	}
	return list
}

// devices are those of the configuration.
func (g *gateway) devices() []admin.DeviceInfo {
	var list []admin.DeviceInfo
	for _, fb := range g.env.Fabrics {
		list = append(list, fb.Devices()...)
	}
	return append(list, g.absent...)
}

// FlushPeers implements admin.Control.
func (g *gateway) FlushPeers() (int, error) {
	g.peers.Flush()
	g.dgrams.Load().Flush()
	return g.steer.FlushPeers()
}

// SetOff implements admin.Control.
func (g *gateway) SetOff(off bool) error {
	g.reloading.Lock() // which changes the mode, too
	defer g.reloading.Unlock()
	if g.heir != nil {
		return g.heir.SetOff(off)
	}
	if err := g.steer.SetOff(off); err != nil {
		return err
	}
	g.off.Store(off)
	if !off {
		if err := g.resetGuard(); err != nil {
			return err
		}
	}
	g.settleDatagrams(g.mode())
	g.settlePromotion()
	return nil
}

// ResetFlows implements admin.Control.
func (g *gateway) ResetFlows() (n int) {
	end := time.Now().Add(500 * time.Millisecond)
	for now := time.Now(); now.Before(end); now = time.Now() {
		left := 0
		for _, f := range g.all() {
			if f.Ended() {
				continue
			}
			left++
			if f.Carried() {
				n++
			}
			f.Cancel(negotiate.ReasonOff)
		}
		g.catchUp()
		if left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // what is being adopted has no handshake yet
	}
	return n
}

// Demote implements admin.Control.
func (g *gateway) Demote(q admin.DemoteQuery) (n int, err error) {
	if q.Device != "" {
		return g.withdraw(q.Device)
	}
	for _, f := range g.all() {
		by := f.Carrier()
		if f.Ended() || by == config.CarrierNone || by == config.CarrierRelay || !q.Matches(f.ID, by) {
			continue
		}
		f.Demote(admin.DemotedByOperator)
		n++
	}
	return n, nil
}

// withdraw closes an RDMA adapter, whose ports may be of two carriers.
func (g *gateway) withdraw(device string) (n int, err error) {
	var errs []error
	known := false
	for _, fb := range g.env.Fabrics {
		h, ok := fb.(*carrier.Hardware)
		if !ok {
			continue
		}
		left, err := h.Withdraw(device)
		if errors.Is(err, carrier.ErrNoDevice) {
			continue
		}
		n, known, errs = n+left, true, append(errs, err)
	}
	if !known {
		return 0, fmt.Errorf("%s: %w", device, carrier.ErrNoDevice)
	}
	return n, errors.Join(errs...)
}

// returnAdapters has adapters used again that an operator has withdrawn.
func (g *gateway) returnAdapters() {
	for _, fb := range g.env.Fabrics {
		if h, ok := fb.(*carrier.Hardware); ok {
			h.Return()
		}
	}
}

// Try implements admin.Control.
func (g *gateway) Try(t admin.Trial) (end func(), err error) { return g.trials.Begin(t) }

func (g *gateway) mode() config.Mode {
	if g.off.Load() {
		return config.ModeOff
	}
	if g.guard.State() == guard.Tripped {
		return config.ModeObserve
	}
	return g.live.Load().Mode
}

// Totals implements admin.MetricsSource.
func (g *gateway) Totals() admin.Snapshot {
	s := admin.Snapshot{
		Mode: g.mode(), Heartbeat: g.pulse.Last(), Draining: g.drainer.Draining(), Share: g.rollout.Share().Percent() / 100, Flows: map[config.Carrier]int{}, FlowsTotal: map[config.Carrier]uint64{},
		BytesTotal: map[config.Carrier]admin.ByteCount{}, Handshakes: map[config.Carrier]admin.HistogramSnapshot{},
		MemoryLimit: uint64(g.cfg.Limits.Memory), Peers: map[admin.PeerState]int{},
	}
	g.env.Counters.AddTo(&s)
	g.reloads.AddTo(&s)
	g.guard.AddTo(&s)
	for _, f := range g.all() {
		f.AddTo(&s)
	}
	s.Bounds = admin.Bounds{
		Flows: g.limits.MaxFlows(), FlowsConfigured: g.live.Load().Limits.MaxFlows, LogDropped: g.logDropped(), AccessLeftOut: g.env.Lines.LeftOut(),
	}
	g.tally.Sum(&s, g.parts)
	g.snapshotDecisions(&s)
	s.InProcess = g.host.promotion.Totals(false)
	ps := g.pool.Stats()
	s.Memory = map[string]uint64{
		"reserved": uint64(ps.Reserved), "used": uint64(ps.Used), "quarantined": uint64(ps.Quarantined),
	}
	var health admin.Status
	g.tellHealth(&health)
	s.Degraded = health.Degraded
	return s
}

// parts sets the counters that a gateway in the place of this one begins again.
func (g *gateway) parts(s *admin.Snapshot) {
	g.dgrams.Load().Snapshot(s)
	s.Panics, s.SharesRefused = g.env.Panics(), report.SharesRefused(g.peers, g.pool)
	if g.carries() {
		report.WireBounds(&s.Bounds, g.env.Stack.Stats())
		s.CQErrors = g.carriers.CQErrors()
	}
}

// Snapshot implements admin.MetricsSource.
func (g *gateway) Snapshot() admin.Snapshot {
	s, _ := g.snapshot()
	return s
}

func (g *gateway) snapshot() (admin.Snapshot, report.Failing) {
	s := g.Totals()
	s.CPU = g.times.Used()
	s.InProcess = g.host.promotion.Totals(true)
	maps, err := g.steer.MapUsage()
	if err != nil {
		g.log.Warn("read maps", "error", err)
	}
	for _, m := range maps {
		s.Maps = append(s.Maps, admin.MapUse{Map: m.Name, Entries: uint64(m.Entries), Capacity: uint64(m.Capacity)})
	}
	s.Devices = g.devices()
	list, failing := g.peersNow()
	report.Count(&s, list)
	return s, failing
}

// snapshotDecisions reads what the programs have decided.
func (g *gateway) snapshotDecisions(s *admin.Snapshot) {
	live := g.live.Load() // before the counters: its book is closed later than they are read, or not
	c, err := g.counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
		return
	}
	for side, byReason := range c.Native {
		for r, n := range byReason {
			s.AddFallback(negotiate.Reason(r), report.SideOf(ebpf.Side(side)), n)
		}
	}
	for _, byReason := range c.Datagrams {
		for r, n := range byReason {
			s.UDP.Native[negotiate.Reason(r).String()] += n
		}
	}
	s.Bounds.Datapath = c.Stats
	live.addDecisions(s, c.Decided)
}
