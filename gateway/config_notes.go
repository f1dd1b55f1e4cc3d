package gateway

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// neverPorts are left native unless a rule names them: losing one of them to a
// bug costs the operator the host, or the cluster.
var neverPorts = []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791}

// NeverPorts returns the ports that are never carried under this configuration:
// the never-list and the metrics port, without those a rule that carries names.
func (c Config) NeverPorts() []uint16 {
	list := slices.Clone(neverPorts)
	if _, port, err := net.SplitHostPort(c.Metrics.Listen); err == nil {
		var n uint16
		if _, err := fmt.Sscanf(port, "%d", &n); err == nil && n != 0 {
			list = append(list, n)
		}
	}
	named := c.carriedPorts()
	return slices.DeleteFunc(list, func(p uint16) bool { return slices.Contains(named, p) })
}

// carriedPorts lists the ports that rules with a carrying action name.
func (c Config) carriedPorts() []uint16 {
	var out []uint16
	for _, r := range c.Policy {
		if r.Action != ActionPass {
			out = append(out, r.Match.Ports...)
		}
	}
	return out
}

// Notes lists what is valid but may not do what its writer expects.
func (c Config) Notes() []string {
	var notes []string
	note := func(cond bool, format string, args ...any) {
		if cond {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	carrying := slices.IndexFunc(c.Policy, func(r Rule) bool { return r.Action != ActionPass }) >= 0
	note(!carrying, "policy: no rule accelerates: every connection stays native")
	note(carrying && c.Mode != ModeEnforce, "mode: %s: nothing is carried", c.Mode)
	note(len(c.Carriers) == 0, "carriers: the list is empty: RDMA is never used")
	for i, r := range c.Policy {
		field := fmt.Sprintf("policy[%d] (%s)", i, r.Name)
		note(r.OutboundOnly(), "%s: cgroups, users and uids are known of outbound connections only: the rule never matches inbound ones", field)
		note(r.MatchesAll() && i < len(c.Policy)-1, "%s: matches everything: the rules after it are never reached", field)
		for _, p := range r.Match.Ports {
			note(r.Action != ActionPass && slices.Contains(neverPorts, p), "%s: port %d is on the never-list and is carried because the rule names it", field, p)
		}
	}
	host, _, err := net.SplitHostPort(c.Metrics.Listen)
	note(err == nil && !isLoopback(host), "metrics.listen: %s can be reached from other hosts, without authentication", strings.TrimSpace(c.Metrics.Listen))
	return notes
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
