package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func newPing(e *env) *cobra.Command {
	var configPath, carrier string
	var o bench.PingOptions
	c := &cobra.Command{
		Use:   "ping HOST[:PORT]",
		Short: "Say whether connections to a service are carried, or why not",
		Long: `Ping opens TCP connections to a service, as any program of this host would, and asks
the gateway of this host what became of each. It sends nothing on them: the service
accepts a connection that ends, as from a check of its health. Without PORT it takes
the ports of the rules of the configuration that the host meets. The time is that of
connect(): with a negotiation in it, where there is one, and no measure of a carrier;
"smcgw bench" measures those.

With --offer the gateway makes the offer whatever the rules of this host say, which
needs the same permission as "smcgw off". While it lasts, other connections of this host
to a server port of that number may be carried to the host, and are native to others.
A port that a rule names already has its rule.

Exit status: 0 every connection was carried by a device, 4 one was not, 1 there was
no connection, 3 no daemon answers.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("ping takes one host: smcgw ping HOST:PORT")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			var err error
			if carrier != "" {
				o.Carrier, err = config.ParseCarrier(carrier)
			}
			switch {
			case err != nil:
				return usagef("--carrier: %w", err)
			case carrier != "" && !o.Offer:
				return usagef("ping: --carrier is about --offer")
			case o.Carrier == report.CarrierRelay:
				return usagef("--carrier: the relay is not offered: connections leave a device for it")
			}
			if o.To, err = e.services(ctx, args[0], configPath); err != nil {
				return err
			}
			return e.ping(ctx, o)
		},
	}
	addConfigFlag(c, &configPath, "")
	c.Flags().IntVar(&o.Count, "count", 3, "connections to each port")
	c.Flags().BoolVar(&o.Offer, "offer", false, "make the offer whatever the rules of this host say")
	c.Flags().StringVar(&carrier, "carrier", "", "with --offer: offer this carrier only: shm, hw, ib or soft")
	return withSocket(e, verb(e, c))
}

// ping makes the connections and prints their results.
func (e *env) ping(ctx context.Context, o bench.PingOptions) error {
	c := e.reach()
	defer c.Close()
	o.Gateway = bench.Beside(c)
	if !e.json {
		o.Each = func(t bench.PingTry) { fmt.Fprintln(e.stdout, pingLine(t)) }
	}
	r, err := bench.Ping(ctx, o)
	if r == nil || err != nil && len(r.Tries) == 0 {
		if errors.Is(err, bench.ErrPing) {
			return usagef("%w", err)
		}
		return err
	}
	if ctx.Err() != nil { // interrupted: print the results so far
		err = nil
	}
	if e.json {
		err = errors.Join(err, e.printJSON(r))
	} else {
		_, errPrint := fmt.Fprint(e.stdout, pingSummary(e.screen(e.stdout), r))
		err = errors.Join(err, printed(errPrint))
	}
	switch {
	case err != nil:
		return err
	case r.Failed == len(r.Tries):
		return &exitError{exitFailed, errSaid}
	case r.Carried < len(r.Tries):
		return &exitError{exitFindings, errSaid}
	}
	return nil
}

// services returns the addresses of HOST[:PORT].
func (e *env) services(ctx context.Context, arg, configPath string) ([]netip.AddrPort, error) {
	host, port, err := hostPort(arg)
	if err != nil {
		return nil, err
	}
	addr, err := lookUpHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	if port != 0 {
		return []netip.AddrPort{netip.AddrPortFrom(addr, port)}, nil
	}
	cfg, err := e.configFor(configPath)
	if err != nil {
		return nil, err
	}
	list := cfg.ServicesOf(addr)
	if len(list) == 0 {
		return nil, usagef("ping: no rule names a TCP port and %v: name HOST:PORT", addr)
	}
	return list, nil
}

// hostPort parses HOST, HOST:PORT, [ADDRESS]:PORT or an IPv6 address; port 0: none.
func hostPort(arg string) (host string, port uint16, err error) {
	if _, err := netip.ParseAddr(strings.Trim(arg, "[]")); err == nil || !strings.Contains(arg, ":") {
		return arg, 0, nil
	}
	host, text, err := net.SplitHostPort(arg)
	if err != nil {
		return "", 0, usagef("%q is not HOST or HOST:PORT", arg)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, usagef("%q is not HOST:PORT with a port from 1 to 65535", arg)
	}
	return host, uint16(n), nil
}

// pingLine describes the result of a connection.
func pingLine(t bench.PingTry) string {
	line := fmt.Sprintf("%v  %d  %s  ", t.Service, t.Sequence, screen.RoundTrip(t.ConnectSeconds))
	if t.Error != "" {
		return line + "no connection: " + t.Error
	}
	line += string(t.Stage)
	if t.Carrier != report.CarrierNone {
		line += "  " + string(t.Carrier)
	}
	if t.MTU > 0 {
		line += fmt.Sprintf("  mtu %d", t.MTU)
	}
	if t.Reason != "" {
		line += "  " + t.Reason
	}
	if t.DecidedBy != "" {
		line += "(" + t.DecidedBy + ")"
	}
	return line
}

// pingSummary counts the results, and explains each reason once.
func pingSummary(s *screen.Screen, r *bench.PingReport) string {
	var b strings.Builder
	line := fmt.Sprintf("%d carried, %d relayed, %d native, %d without a connection", r.Carried, r.Relayed, r.Native, r.Failed)
	if r.Failed < len(r.Tries) {
		line += fmt.Sprintf("; connect %s / %s / %s (least, median, most)", screen.RoundTrip(r.Minimum), screen.RoundTrip(r.Median), screen.RoundTrip(r.Maximum))
	}
	b.WriteString(s.Paragraph(line))
	said := map[string]bool{}
	for _, t := range r.Tries {
		if t.Error == bench.NoAnswer && !said[t.Error] {
			said[t.Error] = true
			b.WriteString(s.Paragraph("no answer: Nothing came back, although the SYN is sent again without the offer."))
			b.WriteString(remedyLine(s, "Look at the service, the firewall of its host and the way there. smcgw off and another try show that it is the same without smcgw."))
		}
		if t.Reason == "" || said[t.Reason] {
			continue
		}
		said[t.Reason] = true
		b.WriteString(reasonHelp(s, t.Reason, r.Offer))
	}
	return b.String()
}

// remedyLine says what to do about the line above it.
func remedyLine(s *screen.Screen, text string) string { return "  > " + s.Hang(text, 4) + "\n" }

// reasonHelp explains a reason.
func reasonHelp(s *screen.Screen, name string, offer bool) string {
	if name == bench.ReasonUnseen {
		return name + ": The gateway knows nothing of the connection.\n" +
			remedyLine(s, "Run this in the network namespace of the gateway; see smcgw status.")
	}
	c, ok := report.CodeNamed(name)
	if !ok {
		return name + ": a reason of a newer version\n"
	}
	text := s.Paragraph(c.Name+": "+c.Meaning) + remedyLine(s, c.Fix)
	if !offer && name == "policy" {
		text += remedyLine(s, "smcgw ping --offer says what the peer would do.")
	}
	return text
}
