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
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

var (
	_ admin.Control = (*gateway)(nil)
	_ report.Source = (*gateway)(nil)
)

func (g *gateway) Status() report.Status {
	snap, failing := g.snapshot()
	st := snap.Status(g.started)
	g.tellHealth(&st)
	if !g.off.Load() {
		live := g.live.Load()
		rules := g.observed.Report(live.Config, g.rollout.Share(), snap.Decisions).Rules
		st.Notes = append(st.Notes, idleRules(rules, st.InProcess.ConnectionsTotal == 0, time.Since(live.since))...)
	}
	if g.carries() {
		st.Notes = append(st.Notes, failing.Notes(time.Now())...)
	}
	return st
}

// failing returns the services that stay native.
func (g *gateway) failing() failingServices {
	var live []report.ConnInfo
	now := time.Now()
	for _, f := range g.engine().all() {
		if f.Carried() {
			live = append(live, f.Info(now))
		}
	}
	return findFailing(live, g.closed.List(), g.native.List())
}

// tellHealth adds which parts of the configuration are not in effect, and why.
func (g *gateway) tellHealth(st *report.Status) {
	st.BlockedLegs = listBlockedLegs(g.steer.BlockedLegs(), g.legless.Load())
	if len(st.BlockedLegs) > 0 {
		st.Degraded = append(st.Degraded, negotiate.ReasonAppLegBlocked.String())
	}
	if g.host.Devices != nil {
		_, st.Notes = g.host.Devices()
	}
	if len(st.Notes) > 0 {
		st.Degraded = append(st.Degraded, negotiate.ReasonAddress.String())
	}
	e := g.engine()
	if e != nil {
		if note := e.host.Legs.Note(); note != "" {
			st.Notes = append(st.Notes, note)
		}
	}
	if why := g.host.unsteered; why != nil {
		st.Degraded = append(st.Degraded, report.NoSteering)
		st.Notes = append(st.Notes, fmt.Sprintf("steering: %v: only connections between programs with the library leave the kernel's way; steering: off says that this is wanted", why))
	}
	g.reloads.Tell(st)
	g.guard.Tell(st)
	failed, active := noteDevices(st, e.devices())
	if e != nil {
		if err := e.noDatagrams.Load(); err != nil {
			failed = true
			st.Notes = append(st.Notes, fmt.Sprintf("datagram_port: no datagram is carried: %v: free the port", *err))
		}
	}
	if !active && e != nil && len(g.cfg.Carriers) > 0 && !g.stopping.Load() {
		failed = true
		st.Notes = append(st.Notes, fmt.Sprintf("carriers: none of %v works on this host, and every connection stays native: smcgw devices tells why", g.cfg.Carriers))
	}
	if failed {
		st.Degraded = append(st.Degraded, negotiate.ReasonDeviceFailed.String())
	}
}

func (g *gateway) Stats() report.Stats {
	snap := g.Snapshot()
	return snap.Stats(g.started)
}

func (g *gateway) Conns(q report.ConnQuery) []report.ConnInfo {
	var list []report.ConnInfo
	if q.Live() {
		list = append(g.engine().conns(q), g.engine().datagrams().Flows()...)
	}
	list = append(list, g.host.promotion.Conns(q)...)
	if q.Ended() {
		list = append(append(list, g.closed.List()...), g.udp.closed.List()...)
	}
	if q.Natives() {
		list = append(append(list, g.native.List()...), g.udp.native.List()...)
	}
	if q.Programs && g.host.Owners != nil {
		g.tellPrograms(list, q.Filter)
	}
	slices.SortStableFunc(list, func(a, b report.ConnInfo) int { return cmp.Compare(b.ID, a.ID) })
	return list
}

// tellPrograms adds the owners of the sockets of selected connections that may still have
// one.
func (g *gateway) tellPrograms(list []report.ConnInfo, of report.ConnFilter) {
	sockets := map[process.Socket][]*report.ConnInfo{}
	for i := range list {
		c := &list[i]
		if s := (process.Socket{UDP: c.Proto == string(report.ProtoUDP), Local: c.Local, Remote: c.Remote}); c.Program == nil && c.End != report.EndClosed && c.End != report.EndAborted && of.Matches(c) {
			sockets[s] = append(sockets[s], c)
		}
	}
	owners, err := g.host.Owners(slices.Collect(maps.Keys(sockets)))
	if err != nil {
		g.log.Debug("look for the programs of connections", "error", err) // a kernel without sock_diag has none to tell, each time
	}
	for s, o := range owners {
		for _, c := range sockets[s] {
			c.Program = &report.Program{Name: o.Program, PID: o.PID, UID: o.UID, Cgroup: o.Cgroup}
		}
	}
}

// Feed implements admin.Control. It reports first what was missed so far, so that only
// earlier readers see that.
func (g *gateway) Feed() *report.Feed {
	g.tellMissed()
	return g.feed
}

// detailBatch is the number of connections that a shard describes in one turn.
const detailBatch = 64

// conns describes the selected flows of the table. If details are wanted, it asks their
// shards for the queue pairs, in batches.
func (e *engine) conns(q report.ConnQuery) []report.ConnInfo {
	flows, now := e.all(), time.Now()
	var list []report.ConnInfo
	if q.Filter == (report.ConnFilter{}) {
		list = make([]report.ConnInfo, 0, len(flows)+2*report.HistorySize)
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

func (g *gateway) Peers() []report.PeerInfo {
	list, _ := g.peersNow()
	return list
}

// peersNow lists the peers, and the services that stay native with them.
func (g *gateway) peersNow() ([]report.PeerInfo, failingServices) {
	e, flows := g.engine(), map[netip.Addr]int{}
	for _, f := range e.all() {
		if f.Carried() {
			flows[f.Tuple.Remote.Addr()]++
		}
	}
	e.datagrams().CountFlows(flows)
	remembered, err := g.steer.Peers()
	if err != nil {
		g.log.Warn("read remembered peers", "error", err)
	}
	known, use := e.peerUse()
	list := listPeers(known, remembered, flows, use)
	failing := g.failing()
	failing.Tell(list)
	return list, failing
}

func (g *gateway) Devices() admin.DeviceList {
	list := admin.DeviceList{Devices: g.engine().devices()}
	if g.host.RDMA != nil {
		var err error
		if list.RDMA, err = g.host.RDMA(); err != nil {
			g.log.Warn("look for RDMA adapters", "error", err)
		}
	}
	return list
}

func (g *gateway) FlushPeers() (int, error) {
	if e := g.engine(); e != nil {
		e.peers.Flush()
		e.datagrams().Flush()
	}
	return g.steer.FlushPeers()
}

func (g *gateway) SetOff(off bool) error {
	g.reloading.Lock() // reloads change the mode, too
	defer g.reloading.Unlock()
	if err := g.steer.SetOff(off); err != nil {
		return err
	}
	g.off.Store(off)
	if !off {
		if err := g.resetGuard(); err != nil {
			return err
		}
	}
	g.engine().settleDatagrams(g.mode())
	g.settlePromotion()
	return nil
}

func (g *gateway) ResetFlows() (n int) {
	e, end := g.engine(), time.Now().Add(500*time.Millisecond)
	for now := time.Now(); now.Before(end); now = time.Now() {
		left := 0
		for _, f := range e.all() {
			if f.Ended() {
				continue
			}
			left++
			if f.Carried() {
				n++
			}
			f.Cancel(negotiate.ReasonOff)
		}
		e.catchUp()
		if left == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // a connection being adopted has no handshake yet
	}
	return n
}

func (g *gateway) Demote(q admin.DemoteQuery) (n int, err error) {
	if q.Device != "" {
		return g.engine().withdraw(q.Device)
	}
	for _, f := range g.engine().all() {
		by := f.Carrier()
		if f.Ended() || by == report.CarrierNone || by == report.CarrierRelay || !q.Matches(f.ID, by) {
			continue
		}
		f.Demote(report.DemotedByOperator)
		n++
	}
	return n, nil
}

// withdraw closes an RDMA adapter, whose ports may belong to two carriers.
func (e *engine) withdraw(device string) (n int, err error) {
	var errs []error
	known := false
	for _, h := range carriersOf[*carrier.Hardware](e) {
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

// returnAdapters allows adapters withdrawn by an operator to be used again.
func (e *engine) returnAdapters() {
	for _, h := range carriersOf[*carrier.Hardware](e) {
		h.Return()
	}
}

func (g *gateway) Try(t config.Trial) (end func(), err error) {
	leave, err := g.rules.Try(t)
	if err != nil {
		return nil, err
	}
	g.host.promotion.Try(g.rules.Trials)
	return func() {
		leave()
		g.host.promotion.Try(g.rules.Trials)
	}, nil
}

func (g *gateway) mode() report.Mode {
	if g.off.Load() {
		return report.ModeOff
	}
	if g.guard.State() == guard.Tripped {
		return report.ModeObserve
	}
	return g.live.Load().Mode
}

func (g *gateway) Totals() report.Snapshot {
	s := report.Snapshot{
		Mode: g.mode(), Heartbeat: g.pulse.Last(), Draining: g.drainer.Draining(), Share: g.rollout.Share().Percent() / 100, Flows: map[report.Carrier]int{}, FlowsTotal: map[report.Carrier]uint64{},
		BytesTotal: map[report.Carrier]report.ByteCount{}, Handshakes: map[report.Carrier]report.HistogramSnapshot{},
		MemoryLimit: uint64(g.cfg.Limits.Memory), Peers: map[report.PeerState]int{},
	}
	g.counters.AddTo(&s)
	g.reloads.AddTo(&s)
	g.guard.AddTo(&s)
	for _, f := range g.engine().all() {
		f.AddTo(&s)
	}
	s.Bounds = report.Bounds{
		Flows: peers.FlowsWithin(g.live.Load().Limits.MaxFlows), FlowsConfigured: g.live.Load().Limits.MaxFlows, LogDropped: g.logDropped(), AccessLeftOut: g.lines.LeftOut(),
	}
	g.tally.Sum(&s, func(s *report.Snapshot) { g.engine().parts(s) })
	g.snapshotDecisions(&s)
	s.InProcess = g.host.promotion.Totals(false)
	s.Memory = g.engine().memory()
	var health report.Status
	g.tellHealth(&health)
	s.Degraded = health.Degraded
	return s
}

func (g *gateway) Snapshot() report.Snapshot {
	s, _ := g.snapshot()
	return s
}

func (g *gateway) snapshot() (report.Snapshot, failingServices) {
	s := g.Totals()
	s.CPU = g.times.Used()
	s.InProcess = g.host.promotion.Totals(true)
	maps, err := g.steer.MapUsage()
	if err != nil {
		g.log.Warn("read maps", "error", err)
	}
	for _, m := range maps {
		s.Maps = append(s.Maps, report.MapUse{Map: m.Name, Entries: uint64(m.Entries), Capacity: uint64(m.Capacity)})
	}
	s.Devices = g.engine().devices()
	list, failing := g.peersNow()
	countPeers(&s, list)
	return s, failing
}

// snapshotDecisions reads the decisions of the programs.
func (g *gateway) snapshotDecisions(s *report.Snapshot) {
	live := g.live.Load() // before the counters: its book is closed later than they are read, or not
	c, err := g.steer.Counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
		return
	}
	for side, byReason := range c.Native {
		for r, n := range byReason {
			s.AddFallback(negotiate.Reason(r), sideOf(ebpf.Side(side)), n)
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
