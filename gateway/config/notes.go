package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
)

// neverPorts are left native unless a rule names them: losing one of them to a
// bug costs the operator the host, or the cluster.
var neverPorts = []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791}

// NeverPorts returns the ports that only a rule which names them carries: the
// never-list, the metrics port, and the ports on which gateways talk to each
// other. The datapath makes the exceptions, rule by rule: one that names a port
// does not open it to the others, nor to the other protocol.
func (c Config) NeverPorts() []uint16 {
	list := append(slices.Clone(neverPorts), c.OwnPorts()...)
	if _, port, err := net.SplitHostPort(c.Metrics.Listen); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
			list = append(list, uint16(n))
		}
	}
	seen := make(map[uint16]bool)
	return slices.DeleteFunc(list, func(p uint16) bool {
		twice := seen[p]
		seen[p] = true
		return twice
	})
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
	for _, name := range c.Devices {
		_, err := net.InterfaceByName(name)
		note(err != nil, "devices: there is no network device %s in this network namespace: see ip link", name)
	}
	for i, r := range c.Policy {
		field := fmt.Sprintf("policy[%d] (%s)", i, r.Name)
		note(r.outboundOnly(), "%s: cgroups, users and uids are known of outbound connections only: the rule never matches inbound ones", field)
		later := slices.ContainsFunc(c.Policy[i+1:], func(l Rule) bool { return l.Match.Proto == r.Match.Proto })
		note(r.matchesAll() && later, "%s: matches everything: the rules for %s after it are never reached", field, r.Match.Proto)
		note(r.carriesDatagrams() && c.DatagramPort.Port() == 0, "%s: datagram_port is 0: no datagram is carried", field)
		for _, p := range r.Match.Ports {
			note(r.Action != ActionPass && p.Single() && slices.Contains(neverPorts, p.First()), "%s: port %v is on the never-list and is carried because the rule names it", field, p)
		}
	}
	_, err := LoadKeys(c.Security.PSKFile)
	note(err != nil && !errors.Is(err, os.ErrPermission), "security.psk_file: %v: the gateway will not start with it", err)
	host, _, err := net.SplitHostPort(c.Metrics.Listen)
	note(err == nil && !isLoopback(host), "metrics.listen: %s can be reached from other hosts, without authentication", strings.TrimSpace(c.Metrics.Listen))
	return notes
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
