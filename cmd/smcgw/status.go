package main

import (
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
)

func newStatus(e *env) *cobra.Command {
	var brief, strict, web bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what the gateway is doing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.client(defaultConfig().Admin)
			defer c.Close()
			if web {
				ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
				defer stop()
				return e.showWeb(ctx, c)
			}
			st, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if err := e.showStatus(st, brief); err != nil {
				return err
			}
			if strict && len(st.Degraded) > 0 {
				return &exitError{exitDegraded, errSaid}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&brief, "brief", false, "print one line")
	c.Flags().BoolVar(&web, "web", false, "serve the status page on a loopback port and print its address, until interrupted")
	c.Flags().BoolVar(&strict, "strict", false, "exit with 5 if the gateway is degraded")
	for _, other := range []string{"brief", "strict"} {
		c.MarkFlagsMutuallyExclusive("web", other)
	}
	return withSocket(e, noun(e, c))
}

func (e *env) showStatus(st admin.Status, brief bool) error {
	if e.json {
		return e.printJSON(st)
	}
	var b strings.Builder
	b.WriteString(headline(st))
	if !brief {
		b.WriteString(details(st))
	}
	_, err := fmt.Fprint(e.stdout, b.String())
	return printed(err)
}

// headline is the status in one line.
func headline(st admin.Status) string {
	flows := 0
	for _, n := range st.Flows {
		flows += n
	}
	line := fmt.Sprintf("smcgw %s up %s, mode %s, %d flows carried", st.Version, age(st.UptimeSeconds), st.Mode, flows)
	if len(st.Degraded) > 0 {
		line += ", degraded: " + strings.Join(st.Degraded, ", ")
	}
	return line + "\n"
}

// blockedLegs says in words what an operator can act on.
func blockedLegs(l admin.BlockedLegs) string {
	where := l.Device + " " + l.Family
	switch l.At {
	case "output":
		return where + ": a rule in output or postrouting drops new connections of this host; see: nft list ruleset, iptables-save"
	case "input":
		return where + ": a rule in ingress, prerouting or input, or the reverse-path filter, drops answers that the network's would pass; see: nft list ruleset, iptables-save"
	case "established":
		return where + ": a rule drops packets of established connections; see: nft list ruleset, iptables-save"
	case "keeper":
		return "the process that makes the gateway's sockets (smcgw-legs) is gone; restart the gateway"
	default:
		return where + ": " + l.At
	}
}

// details are the lines below the headline.
func details(st admin.Status) string {
	var b strings.Builder
	for _, c := range slices.Sorted(maps.Keys(st.Flows)) {
		bytes := st.BytesTotal[c]
		fmt.Fprintf(&b, "%-10s %d flows, %d since the start, %s sent, %s received\n",
			c, st.Flows[c], st.FlowsTotal[c], size(bytes.Tx), size(bytes.Rx))
	}
	var native []string
	for _, name := range slices.Sorted(maps.Keys(st.FallbacksTotal)) {
		native = append(native, fmt.Sprintf("%s %d", name, st.FallbacksTotal[name]))
	}
	if native == nil {
		native = []string{"none"}
	}
	fmt.Fprintf(&b, "%-10s %s\n", "native", strings.Join(native, ", "))
	fmt.Fprintf(&b, "%-10s %s of %s\n", "memory", size(st.Memory.UsedBytes), size(st.Memory.LimitBytes))
	fmt.Fprintf(&b, "%-10s %d known\n", "peers", st.Peers)
	for _, d := range []struct {
		name string
		info *admin.DrainInfo
	}{{"draining", st.Draining}, {"old", st.Predecessor}} {
		if d.info != nil {
			fmt.Fprintf(&b, "%-10s %d connections left, reset in %s\n", d.name, d.info.Flows+d.info.Lingering, age(d.info.RemainingSeconds))
		}
	}
	if l := st.FlowLimit; l.Now < l.Configured {
		fmt.Fprintf(&b, "%-10s %d flows instead of %d: a descriptor each (ulimit -n, LimitNOFILE)\n", "limit", l.Now, l.Configured)
	}
	if st.LogDropped > 0 {
		fmt.Fprintf(&b, "%-10s %d lines lost: they could not be written\n", "log", st.LogDropped)
	}
	for _, name := range st.Degraded {
		if code, ok := admin.CodeNamed(name); ok {
			fmt.Fprintf(&b, "%-10s %s: %s %s\n", "degraded", name, code.Meaning, code.Fix)
		}
	}
	for _, n := range st.Notes {
		fmt.Fprintf(&b, "%-10s %s\n", "note", n)
	}
	for _, l := range st.BlockedLegs {
		fmt.Fprintf(&b, "%-10s %s\n", "blocked", blockedLegs(l))
	}
	return b.String()
}
