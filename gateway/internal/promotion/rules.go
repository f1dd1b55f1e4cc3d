package promotion

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// rules are those of a configuration for both ends of a connection. It is selected if neither end refuses it: a rule about
// one direction that accelerates is asked at its own end and lets the other one pass, and what is known of callers only
// (cgroups, users) is asked at the client's.
type rules struct {
	client, server *ebpf.Policy
	names          []string         // of the rules of both
	actions        []report.Action  // as they are given
	carriers       []report.Carrier // the only one of a trial; none: any
}

// newRules compiles the rules, with the share that holds now, and those of trials behind them: their ports know no other.
func newRules(c config.Config, share ebpf.Share, trials []*config.Trial) (rules, error) {
	all := policy.Translate(c, false, slog.New(slog.DiscardHandler))
	var client, server []ebpf.Rule
	var out rules
	for i, r := range all.Policy { // as the steering has them
		given := c.Policy[i]
		r.Action = ebpf.ActionPass
		if given.Action != report.ActionPass && given.Way != report.WaySteered {
			r.Action = ebpf.ActionAccelerate // auto, too: rings are faster than the kernel whatever the host has
		}
		client, server, out.names = append(client, r), append(server, r), append(out.names, given.Name)
		out.actions, out.carriers = append(out.actions, given.Action), append(out.carriers, report.CarrierNone)
		if r.Action == ebpf.ActionPass { // at the end it is about, and what asks for a caller at none of a server
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

// outbound is what the rules say of a client's end, inbound of a server's.
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

// rule is the one that decides about an end; false: none does.
func (r rules) rule(q broker.Question) (i int, ok bool) {
	if q.Socket.Role == broker.RoleServer {
		i = r.inbound(q).Rule
	} else {
		i = r.outbound(q).Rule
	}
	return i, i >= 0 && i < len(r.names)
}

// name is that of the rule that decides about an end.
func (r rules) name(q broker.Question) string {
	if i, ok := r.rule(q); ok {
		return r.names[i]
	}
	return policy.NoRule
}

// pays reports whether rules want an end carried between hosts by a carrier. Without an adapter the kernel is faster.
func (r rules) pays(q broker.Question, by negotiate.CarrierKind) bool {
	i, ok := r.rule(q)
	if !ok || r.carriers[i] != report.CarrierNone && r.carriers[i] != report.Carrier(by.String()) {
		return false
	}
	return by.OfAdapter() || r.actions[i] == report.ActionAccelerate
}
