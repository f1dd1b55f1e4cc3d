package suggest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

const (
	// maxSuggested leaves room for the rules that there are.
	maxSuggested = 48
	// maxNamedHosts is how many hosts a rule names; with more it is about every host.
	maxNamedHosts = 16
)

// Configuration writes one for what was seen, and says how many rules it has.
func Configuration(p *admin.PolicyReport, percent string) (text string, rules int) {
	var b, left strings.Builder
	never := config.Config{}.WithDefaults().NeverPorts()
	for _, o := range merged(p.Observed) {
		seen := fmt.Sprintf("%s port %d: %s, %s, %s bulk", o.Side, o.Port, counted(o.Connections), screen.Size(o.Bytes.Tx+o.Bytes.Rx), cmp.Or(screen.Part(o.BulkBytes, o.Bytes.Tx+o.Bytes.Rx), "none"))
		switch {
		case o.Carries:
			fmt.Fprintf(&left, "# %s: rule %s\n", seen, cmp.Or(o.Rule, "none"))
		case o.Port == 0 || slices.Contains(never, o.Port):
			fmt.Fprintf(&left, "# %s: on the never-list\n", seen)
		case !pays(o):
			fmt.Fprintf(&left, "# %s: nothing to gain\n", seen)
		case rules == maxSuggested:
			fmt.Fprintf(&left, "# %s: no room for one more rule\n", seen)
		default:
			rules++
			fmt.Fprintf(&b, "  # %s\n  %s\n", seen, suggestedRule(o))
		}
	}
	head := "schema: smcgw/v1\nmode: observe\nrollout: { percent: " + percent + " }\n"
	if len(p.Observed) == 0 {
		left.WriteString("# Nothing to propose: no connection has ended in the mode observe since the gateway started.\n")
	}
	if rules == 0 {
		return head + "policy: []\n" + left.String(), 0
	}
	return head + "policy:\n" + b.String() + left.String(), rules
}

// pays reports whether carrying a service can pay by a carrier.
func pays(o *admin.ObservedService) bool {
	_, greatest := o.GainOver()
	return greatest >= 1
}

// merged are the services of which each is one rule: no other tells apart those that no
// rule carries.
func merged(list []admin.ObservedService) (out []*admin.ObservedService) {
	type service struct {
		side    config.Side
		port    uint16
		carries bool
	}
	known := map[service]*admin.ObservedService{}
	for _, o := range list {
		k := service{o.Side, o.Port, o.Carries}
		first := known[k]
		if first == nil || o.Carries {
			o.Hosts = slices.Clone(o.Hosts)
			known[k] = &o
			out = append(out, &o)
			continue
		}
		first.Connections += o.Connections
		first.Bytes.Tx += o.Bytes.Tx
		first.Bytes.Rx += o.Bytes.Rx
		first.BulkBytes += o.BulkBytes
		first.MoreHosts = first.MoreHosts || o.MoreHosts
		if pays(&o) {
			first.Gain = o.Gain
		}
		for _, h := range o.Hosts {
			if !slices.Contains(first.Hosts, h) {
				first.Hosts = append(first.Hosts, h)
			}
		}
	}
	return out
}

func counted(connections uint64) string {
	if connections == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", connections)
}

// suggestedRule is a rule about a service. A client learns whether carrying pays; a server
// answers those that ask.
func suggestedRule(o *admin.ObservedService) string {
	action := config.ActionAuto
	if o.Side == config.SideServer {
		action = config.ActionAccelerate
	}
	match := fmt.Sprintf("direction: %s, ports: [%d]", o.Side, o.Port)
	if !o.MoreHosts && len(o.Hosts) <= maxNamedHosts {
		match += ", peers: [" + hostList(o.Hosts) + "]"
	}
	return fmt.Sprintf("- name: %s-%d\n    match: { %s }\n    action: %s", o.Side, o.Port, match, action)
}

func hostList(hosts []netip.Addr) string {
	quoted := make([]string, len(hosts))
	for i, h := range hosts {
		quoted[i] = `"` + h.String() + `"`
	}
	return strings.Join(quoted, ", ")
}
