package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// filterFlags are the flags that select connections.
type filterFlags struct {
	port                              uint16
	peer, carrier, reason, way, ended string
}

func (f *filterFlags) register(c *cobra.Command) {
	f.registerAddress(c)
	fs := c.Flags()
	fs.StringVar(&f.carrier, "carrier", "", "only carried by shm, hw, ib, soft or relay")
	fs.StringVar(&f.reason, "reason", "", "only with this reason: \"smcgw codes\" lists them; operator and peer are those of demotions")
	fs.StringVar(&f.way, "way", "", "only going this way: native, in-process or steered")
	fs.StringVar(&f.ended, "end", "", "only those that ended as closed, aborted or native")
	for name, known := range f.known() {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	}
}

// registerAddress registers only the flags that select by address.
func (f *filterFlags) registerAddress(c *cobra.Command) {
	c.Flags().Uint16Var(&f.port, "port", 0, "only with this port at either end")
	c.Flags().StringVar(&f.peer, "peer", "", "only with this address, or with those of a prefix")
}

// known returns the values of the flags that have a fixed list of them.
func (*filterFlags) known() map[string][]string {
	carriers := []string{}
	for _, k := range report.DeviceKinds() {
		carriers = append(carriers, string(k))
	}
	for _, c := range report.Carriers() {
		carriers = append(carriers, string(c))
	}
	ways := []string{}
	for _, w := range report.Ways() {
		ways = append(ways, string(w))
	}
	return map[string][]string{
		"carrier": carriers,
		"reason":  append(reasonNames(), report.DemotedByOperator, report.DemotedByPeer),
		"way":     ways,
		"end":     {string(report.EndClosed), string(report.EndAborted), string(report.EndNative)},
	}
}

// parse converts the flags, and refuses values that no connection can have.
func (f *filterFlags) parse() (out report.ConnFilter, err error) {
	known := f.known()
	for name, given := range map[string]string{
		"carrier": f.carrier, "reason": f.reason, "way": f.way, "end": f.ended,
	} {
		if given != "" && !slices.Contains(known[name], given) {
			if name == "reason" {
				return out, usagef("--reason: %q is not a reason%s; \"smcgw codes\" lists them", given, meant(given, known[name]))
			}
			return out, usagef("--%s: %q is not one of %s%s", name, given, strings.Join(known[name], ", "), meant(given, known[name]))
		}
	}
	out = report.ConnFilter{Port: f.port, Reason: f.reason, Way: report.Way(f.way), End: report.End(f.ended)}
	if f.carrier != "" {
		if out.Carrier, err = config.ParseCarrier(f.carrier); err != nil {
			return out, usagef("--carrier: %w", err)
		}
	}
	if f.peer != "" {
		if out.Peer, err = parsePeers(f.peer); err != nil {
			return out, usagef("--peer: %w", err)
		}
	}
	return out, nil
}

// parsePeers parses an address or a prefix.
func parsePeers(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a prefix such as 10.0.0.0/8", text)
	}
	return p.Masked(), nil
}
