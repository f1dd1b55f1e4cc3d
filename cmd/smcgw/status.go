package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

func newStatus(e *env) *cobra.Command {
	var brief, strict, web bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what the gateway is doing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := e.reach()
			defer c.Close()
			if web {
				ctx, stop := interruptible(cmd.Context())
				defer stop()
				return e.showWeb(ctx, c)
			}
			st, err := statusWithin(cmd.Context(), c, wait, strict)
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
	c.Flags().DurationVar(&wait, "wait", 0, "wait at most this long for the gateway to answer and, with --strict, not to be degraded")
	for _, other := range []string{"brief", "strict", "wait"} {
		c.MarkFlagsMutuallyExclusive("web", other)
	}
	return withSocket(e, noun(e, c))
}

// waitStep is how often statusWithin asks; waitLeast is how long each answer may take, even beyond the end of the wait.
const (
	waitStep  = 200 * time.Millisecond
	waitLeast = time.Second
)

// statusWithin asks the daemon repeatedly until it answers (if well, until it is not degraded) or the time is over,
// when the last answer counts.
func statusWithin(ctx context.Context, c *admin.Client, wait time.Duration, well bool) (report.Status, error) {
	end := time.Now().Add(wait)
	ask := func() (report.Status, error) {
		if wait <= 0 {
			return c.Status(ctx)
		}
		ctx, cancel := context.WithTimeout(ctx, max(time.Until(end), waitLeast))
		defer cancel()
		return c.Status(ctx)
	}
	for {
		st, err := ask()
		done := err == nil && (!well || len(st.Degraded) == 0) || err != nil && !errors.Is(err, admin.ErrDaemonUnreachable)
		if left := time.Until(end); done || left <= 0 {
			return st, err
		}
		select {
		case <-ctx.Done():
			return st, ctx.Err()
		case <-time.After(min(waitStep, time.Until(end))):
		}
	}
}

func (e *env) showStatus(st report.Status, brief bool) error {
	if e.json {
		return e.printJSON(st)
	}
	out := e.screen(e.stdout)
	as := screen.Good
	if len(st.Degraded) > 0 {
		as = screen.Warn
	}
	text := out.Paint(as, out.Hang(headline(st), 2)) + "\n"
	if !brief {
		text += details(out, st, e.daemonAt())
	}
	_, err := fmt.Fprint(e.stdout, text)
	return printed(err)
}

// headline returns the status in one line.
func headline(st report.Status) string {
	line := fmt.Sprintf("smcgw %s up %s, mode %s, %s carried", st.Version, age(st.UptimeSeconds), st.Mode, carriedText(carriedNow(st)))
	if n := st.InProcess.Connections; n > 0 {
		line += fmt.Sprintf(", %d in process", n)
	}
	if len(st.Degraded) > 0 {
		line += ", degraded: " + strings.Join(st.Degraded, ", ")
	}
	return line
}

// carriedNow counts connections and pairs of UDP ends.
func carriedNow(st report.Status) (connections, pairs int) {
	for _, n := range st.Flows {
		connections += n
	}
	for _, n := range st.UDP.Flows {
		pairs += n.Now
	}
	return connections, pairs
}

// carriedText renders numbers of connections and, if there are any, pairs of UDP ends.
func carriedText(connections, pairs int) string {
	text := plural(connections, "connection")
	if pairs > 0 {
		text += " and " + plural(pairs, "UDP pair")
	}
	return text
}

// blockedLegs describes blocked legs in terms that an operator can act on.
func blockedLegs(l report.BlockedLegs) string {
	where := l.Device + " " + l.Family
	switch l.At {
	case "output":
		return where + ": a rule in output or postrouting drops new connections of this host; see: nft list ruleset, iptables-save"
	case "input":
		return where + ": a rule in ingress, prerouting or input, or the reverse-path filter, drops answers that the network's would pass; see: nft list ruleset, iptables-save"
	case "established":
		return where + ": a rule drops packets of established connections; see: nft list ruleset, iptables-save"
	case "keeper":
		return "the process that makes the gateway's sockets (smcgw-legs) does not answer; if it is gone, restart the gateway"
	default:
		return where + ": " + l.At
	}
}

// inProcessLine describes connections between programs with the library, if there is something to report; when is the
// time that the counters cover.
func inProcessLine(line func(name, format string, args ...any), p report.InProcess, when string) {
	switch {
	case !p.Enabled:
	case !p.Serving:
		line("in-process", "not served: %s", p.Note)
	default:
		text := fmt.Sprintf("%s, %d %s, %s by rings; %s, %s waiting", plural(p.Connections, "connection"), p.ConnectionsTotal, when, screen.Size(p.RingBytesTotal), plural(p.Processes, "program"), plural(p.Waiting, "end"))
		if p.Predicted > 0 {
			text += fmt.Sprintf("; %d would have been promoted", p.Predicted)
		}
		line("in-process", "%s; native: %s", text, listed(p.Native))
	}
}

// details returns the lines below the headline for the daemon at a socket.
func details(s *screen.Screen, st report.Status, socket string) string {
	var b strings.Builder
	line := func(name, format string, args ...any) { b.WriteString(s.Field(name, fmt.Sprintf(format, args...))) }
	for _, c := range slices.Sorted(maps.Keys(st.Flows)) {
		bytes := st.BytesTotal[c]
		if st.Flows[c] == 0 && st.FlowsTotal[c] == 0 {
			continue
		}
		line(string(c), "%s, %d since the start, %s sent, %s received", plural(st.Flows[c], "connection"), st.FlowsTotal[c], screen.Size(bytes.Tx), screen.Size(bytes.Rx))
	}
	for _, c := range slices.Sorted(maps.Keys(st.UDP.Flows)) {
		if n := st.UDP.Flows[c]; n.Total > 0 {
			bytes := st.UDP.Bytes[c]
			line("udp", "%s by %s, %d since the start, %s sent, %s received", plural(n.Now, "pair"), c, n.Total, screen.Size(bytes.Tx), screen.Size(bytes.Rx))
		}
	}
	inProcessLine(line, st.InProcess, "since the start")
	line("native", "%s", listed(st.FallbacksTotal))
	if native := listed(st.UDP.Native); native != listed[string](nil) {
		line("", "UDP pairs: %s", native)
	}
	if len(st.ResetsTotal) > 0 {
		line("reset", "%s", listed(st.ResetsTotal))
	}
	line("memory", "%s used, %s reserved of %s", screen.Size(st.Memory.UsedBytes), screen.Size(st.Memory.ReservedBytes), screen.Size(st.Memory.LimitBytes))
	line("peers", "%d known", st.Peers)
	switch {
	case st.Draining != nil:
		line("draining", "%s", drainText(*st.Draining))
	case st.Version != buildVersion():
		line("version", "this program is %s: smcgw reload has it take over", buildVersion())
	}
	if st.Predecessor != nil {
		line("old", "the gateway before this one serves its last connections: %s; see smcgw conns --socket %s", drainText(*st.Predecessor), socket+config.DrainingSuffix)
	}
	if l := st.FlowLimit; l.Now < l.Configured {
		line("limit", "%d connections instead of %d: a descriptor each (ulimit -n, LimitNOFILE)", l.Now, l.Configured)
	}
	if st.LogDropped > 0 {
		line("log", "%d lines lost: they could not be written", st.LogDropped)
	}
	for _, name := range st.Degraded {
		if code, ok := report.CodeNamed(name); ok && code.Code != 0 { // other names have notes
			line("degraded", "%s: %s %s", name, code.Meaning, code.Fix)
		}
	}
	for _, n := range st.Notes {
		line("note", "%s", n)
	}
	for _, l := range st.BlockedLegs {
		line("blocked", "%s", blockedLegs(l))
	}
	return b.String()
}

// Bounds of the page's server, which has one reader.
const (
	webTimeout   = 30 * time.Second
	webMaxHeader = 8 << 10
)

// showWeb serves the status page of a daemon on a loopback port until ctx ends. Its address contains a secret, because
// other users of the host may not query the admin socket.
func (e *env) showWeb(ctx context.Context, c *admin.Client) error {
	if _, _, err := c.Page(ctx); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for a browser: %w", err)
	}
	path := "/" + rand.Text() + "/"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"{$}", func(w http.ResponseWriter, r *http.Request) { passPage(w, r, c) })
	srv := &http.Server{Handler: mux, ReadTimeout: webTimeout, WriteTimeout: webTimeout, IdleTimeout: webTimeout, MaxHeaderBytes: webMaxHeader}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if _, err := fmt.Fprintf(e.stdout, "http://127.0.0.1:%s%s\n", port, path); err != nil {
		return errors.Join(printed(err), l.Close())
	}
	fmt.Fprintf(e.stderr, "Served until this command ends. From another machine: ssh -L %s:127.0.0.1:%s HOST\n", port, port)
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the status page: %w", err)
	}
	return nil
}

// passPage forwards the daemon's page with its headers.
func passPage(w http.ResponseWriter, r *http.Request, c *admin.Client) {
	text, header, err := c.Page(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for _, name := range []string{"Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cache-Control"} {
		w.Header().Set(name, header.Get(name))
	}
	_, _ = w.Write(text)
}
