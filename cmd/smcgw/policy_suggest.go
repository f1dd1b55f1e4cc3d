package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

func newPolicySuggest(e *env) *cobra.Command {
	var percent string
	c := &cobra.Command{
		Use:   "suggest",
		Short: "Propose rules for what was seen in the mode observe",
		Long: `Suggest prints a configuration with a rule for each service whose connections were
bulk in the mode observe, so that carrying them may pay, and says of the others why
there is none. Services that a rule carries already are left out. It changes nothing:
put the rules that you want in the configuration, and look at it with "smcgw check".`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := config.ParseShare(percent); err != nil {
				return usagef("--percent: %v", err)
			}
			p, err := e.policy(cmd)
			if err != nil {
				return err
			}
			text, rules := suggestion(&p, percent)
			if e.json {
				return e.printJSON(suggestionDoc{Schema: suggestionSchema, Rules: rules, Configuration: text})
			}
			_, err = fmt.Fprint(e.stdout, text)
			return printed(err)
		},
	}
	c.Flags().StringVar(&percent, "percent", "10%", "rollout.percent of the configuration")
	return withSocket(e, withJSON(e, c))
}

// suggestionSchema versions the document of policy suggest.
const suggestionSchema = "smcgw.suggestion/v1"

type suggestionDoc struct {
	Schema string `json:"schema"`
	// Rules is how many rules Configuration has, a file in YAML.
	Rules         int    `json:"rules"`
	Configuration string `json:"configuration"`
}

const (
	// maxSuggested leaves room for the rules that there are.
	maxSuggested = 48
	// maxNamedHosts is how many hosts a rule names; with more it is about every host.
	maxNamedHosts = 16
)

// suggestion writes a configuration for what was seen, and says how many rules it has.
func suggestion(p *admin.PolicyReport, percent string) (text string, rules int) {
	var b, left strings.Builder
	never := config.Config{}.WithDefaults().NeverPorts()
	for _, o := range merged(p.Observed) {
		seen := fmt.Sprintf("%s port %d: %d connections, %s, %s bulk", o.Side, o.Port, o.Connections, compact(o.Bytes.Tx+o.Bytes.Rx), orNone(bulkCell(o.BulkBytes, o.Bytes.Tx+o.Bytes.Rx)))
		switch {
		case o.Carries:
			fmt.Fprintf(&left, "# %s: rule %s\n", seen, orNone(o.Rule))
		case o.Port == 0 || slices.Contains(never, o.Port):
			fmt.Fprintf(&left, "# %s: on the never-list\n", seen)
		case o.Gain == admin.GainNone || o.Gain == admin.GainUnknown:
			fmt.Fprintf(&left, "# %s: nothing to gain\n", seen)
		case rules == maxSuggested:
			fmt.Fprintf(&left, "# %s: no room for one more rule\n", seen)
		default:
			rules++
			fmt.Fprintf(&b, "  # %s\n  %s\n", seen, suggestedRule(o))
		}
	}
	head := "schema: smcgw/v1\nmode: observe\nrollout: { percent: " + percent + " }\n"
	if rules == 0 {
		return head + "policy: []\n" + left.String(), 0
	}
	return head + "policy:\n" + b.String() + left.String(), rules
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
		for _, h := range o.Hosts {
			if !slices.Contains(first.Hosts, h) {
				first.Hosts = append(first.Hosts, h)
			}
		}
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
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
	return fmt.Sprintf("- { name: %s-%d, match: { %s }, action: %s }", o.Side, o.Port, match, action)
}

func hostList(hosts []netip.Addr) string {
	quoted := make([]string, len(hosts))
	for i, h := range hosts {
		quoted[i] = `"` + h.String() + `"`
	}
	return strings.Join(quoted, ", ")
}
