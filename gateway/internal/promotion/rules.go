package promotion

import (
	"fmt"
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// rules are those of a configuration for both ends of a connection. It is selected if neither end refuses it: a rule about
// one direction that accelerates is asked at its own end and lets the other one pass, and what is known of callers only
// (cgroups, users) is asked at the client's.
type rules struct {
	client, server *ebpf.Policy
	names          []string        // of the rules of both
	actions        []report.Action // as they are given
}

// newRules compiles the rules, with the share that holds now.
func newRules(c config.Config, share ebpf.Share) (rules, error) {
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
		out.actions = append(out.actions, given.Action)
		if r.Action == ebpf.ActionPass { // at the end it is about, and what asks for a caller at none of a server
			continue
		}
		client[i].Direction, server[i].Direction = ebpf.DirectionBoth, ebpf.DirectionBoth
		server[i].Cgroups, server[i].UIDs = nil, nil
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

// wants reports whether the rules want an end to be promoted: one whose side is not known, if they would on either side.
func (r rules) wants(q broker.Question) bool {
	switch q.Socket.Role {
	case broker.RoleClient:
		return r.outbound(q).Action != ebpf.ActionPass
	case broker.RoleServer:
		return r.inbound(q).Action != ebpf.ActionPass
	default:
		return r.outbound(q).Action != ebpf.ActionPass && r.inbound(q).Action != ebpf.ActionPass
	}
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

// pays reports whether rules want an end carried between hosts by an adapter, or by another device. Without an adapter the
// kernel is faster.
func (r rules) pays(q broker.Question, adapter bool) bool {
	i, ok := r.rule(q)
	return ok && (adapter || r.actions[i] == report.ActionAccelerate)
}
