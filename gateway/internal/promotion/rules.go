package promotion

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// rules are the rules of a configuration, compiled for each end of a connection. A connection is selected if neither
// end refuses it. So that each criterion is checked where it can be, an accelerating rule for one direction is checked
// at its own end and passes the other end, and criteria known of callers only (cgroups, users) are checked at the
// client.
type rules struct {
	client, server *ebpf.Policy
	names          []string         // of the rules, by number, for both ends
	actions        []report.Action  // as configured, by number
	carriers       []report.Carrier // the only carrier of a trial, by number; CarrierNone: any
}

// newRules compiles the rules, with the current share, followed by those of trials, whose ports belong to no other
// rule.
func newRules(c config.Config, share ebpf.Share, trials []*config.Trial) (rules, error) {
	all := policy.Translate(c, false, slog.New(slog.DiscardHandler))
	var client, server []ebpf.Rule
	var out rules
	for i, r := range all.Policy { // as translated for the steering
		given := c.Policy[i]
		r.Action = ebpf.ActionPass
		if given.Action != report.ActionPass && given.Way != report.WaySteered {
			r.Action = ebpf.ActionAccelerate // also for auto: rings are faster than the kernel on any host
		}
		client, server, out.names = append(client, r), append(server, r), append(out.names, given.Name)
		out.actions, out.carriers = append(out.actions, given.Action), append(out.carriers, report.CarrierNone)
		if r.Action == ebpf.ActionPass { // pass rules keep their direction and callers
			continue
		}
		client[i].Direction, server[i].Direction = ebpf.DirectionBoth, ebpf.DirectionBoth
		server[i].Cgroups, server[i].UIDs = nil, nil
	}
	for _, t := range trials {
		r := ebpf.Rule{Ports: []uint16{t.Port}, Peers: []netip.Prefix{netip.PrefixFrom(t.Peer, t.Peer.BitLen())}, Action: ebpf.ActionPass, Sole: true, Share: ebpf.ShareAll}
		if t.Action == report.ActionAccelerate && t.Way != report.WaySteered {
			r.Action = ebpf.ActionAccelerate
		}
		client, server, out.names = append(client, r), append(server, r), append(out.names, policy.TrialRule)
		out.actions, out.carriers = append(out.actions, t.Action), append(out.carriers, t.Carrier)
	}
	var err error
	if out.client, err = ebpf.CompilePolicy(client, all.NeverPorts); err != nil {
		return out, fmt.Errorf("rules of the in-process way: %w", err)
	}
	if out.server, err = ebpf.CompilePolicy(server, all.NeverPorts); err != nil {
		return out, fmt.Errorf("rules of the in-process way: %w", err)
	}
	out.client.Rollout = ebpf.Rollout{Share: share}
	return out, nil
}

// outbound returns the verdict on a client's end, inbound that on a server's.
func (r rules) outbound(q broker.Question) ebpf.Verdict {
	return r.client.Decide(ebpf.Query{
		Proto: ebpf.ProtoTCP, Peer: q.Socket.Remote.Addr(), Port: q.Socket.Remote.Port(), UID: q.Process.UID, Cgroup: q.Process.Cgroup,
		Local: q.Socket.Local, Remote: q.Socket.Remote,
	})
}

func (r rules) inbound(q broker.Question) ebpf.Verdict {
	return r.server.Decide(ebpf.Query{Proto: ebpf.ProtoTCP, Inbound: true, Peer: q.Socket.Remote.Addr(), Port: q.Socket.Local.Port()})
}

// wants reports whether the rules want an end to be promoted.
func (r rules) wants(q broker.Question) bool {
	if q.Socket.Role == broker.RoleServer {
		return r.inbound(q).Action != ebpf.ActionPass
	}
	return r.outbound(q).Action != ebpf.ActionPass
}

// rule returns the number of the rule that decides about an end; false if none does.
func (r rules) rule(q broker.Question) (i int, ok bool) {
	if q.Socket.Role == broker.RoleServer {
		i = r.inbound(q).Rule
	} else {
		i = r.outbound(q).Rule
	}
	return i, i >= 0 && i < len(r.names)
}

// name returns the name of the rule that decides about an end.
func (r rules) name(q broker.Question) string {
	if i, ok := r.rule(q); ok {
		return r.names[i]
	}
	return policy.NoRule
}

// pays reports whether the rules allow a carrier to carry an end between hosts. Without an adapter the kernel is faster
// in bulk, so only accelerate allows that.
func (r rules) pays(q broker.Question, by negotiate.CarrierKind) bool {
	i, ok := r.rule(q)
	if !ok || r.carriers[i] != report.CarrierNone && r.carriers[i] != report.Carrier(by.String()) {
		return false
	}
	return by.OfAdapter() || r.actions[i] == report.ActionAccelerate
}

// forecastSize bounds the ends in each of the two generations.
const forecastSize = 8192

// forecast counts the connections that would be promoted: those both of whose ends have asked. Ends ask again and
// again, but a connection counts once, unless it has been forgotten: ends are kept for at most two generations.
type forecast struct {
	mu       sync.Mutex // guards everything below
	now, old map[endName]bool
	pairs    uint64
}

// endName identifies an end by its sequence numbers, or else by its addresses.
type endName struct {
	sequences     broker.Sequences
	netns         uint64
	local, remote netip.AddrPort
}

func nameOf(s broker.Socket) endName {
	if s.Named {
		return endName{sequences: s.Sequences}
	}
	return endName{netns: s.Netns, local: s.Local, remote: s.Remote}
}

func (n endName) mirror() endName {
	return endName{broker.Sequences{Mine: n.sequences.Peer, Peer: n.sequences.Mine}, n.netns, n.remote, n.local}
}

// note records that an end would be promoted. It returns true if its other end would be, too, and the connection is
// counted now.
func (f *forecast) note(s broker.Socket) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := nameOf(s)
	if f.now[n] || f.old[n] {
		return false
	}
	if f.now == nil || len(f.now) >= forecastSize {
		f.old, f.now = f.now, map[endName]bool{}
	}
	f.now[n] = true
	if m := n.mirror(); !f.now[m] && !f.old[m] {
		return false
	}
	f.pairs++
	return true
}

func (f *forecast) count() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pairs
}
