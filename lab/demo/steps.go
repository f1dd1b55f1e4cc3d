package demo

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// plainPeer does the same with the host that runs no gateway.
func (s *show) plainPeer() error {
	for _, w := range works() {
		s.say("%s: h1 → h3, which is plain", w.name)
		l := line{name: w.name + ", to the plain host", unit: w.unit, better: w.better, what: "native, reason peer_no_option"}
		err := l.rounds(s.Rounds, func(off bool) (float64, error) {
			ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
			defer cancel()
			if _, err := s.g1.admin.SetOff(ctx, off); err != nil {
				return 0, fmt.Errorf("switch h1: %w", err)
			}
			return w.run(ctx, s.h1, s.h3)
		})
		if err != nil {
			return err
		}
		l.ok, l.note = s.nativeBecause("peer_no_option")
		s.report.add(l)
	}
	return nil
}

// nativeBecause looks for connections to h3 in h1's list and checks their reason. The gateway collects the decisions of
// the programs ten times a second.
func (s *show) nativeBecause(reason string) (bool, string) {
	if err := testnet.Sleep(s.ctx, 300*time.Millisecond); err != nil {
		return false, err.Error()
	}
	list, err := s.g1.admin.Conns(s.ctx, report.ConnQuery{All: true})
	if err != nil {
		return false, err.Error()
	}
	found := false
	for _, c := range list.Conns {
		if c.Remote.Addr() != s.h3.Addr4 && c.Remote.Addr() != s.h3.Addr6 {
			continue
		}
		switch c.Reason {
		case reason:
			found = true
		case "off", "rate_limit": // begun while the demo switched the gateway, or beyond limits.new_flows_at_once
		default:
			return false, fmt.Sprintf("a connection to h3 is %s, reason %q", c.State, c.Reason)
		}
	}
	if !found {
		return false, "no connection to h3 with reason " + reason
	}
	return true, ""
}

// death kills h2's gateway in the middle of a download.
func (s *show) death() error {
	s.say("kill -9 h2's gateway in the middle of a download")
	long, err := s.h1.StartApp("fetch", "-to", s.h2.AddrPort4(webPort).String(), "-size", fmt.Sprint(int64(1)<<40))
	if err != nil {
		return fmt.Errorf("long download: %w", err)
	}
	if err := s.carrying(); err != nil {
		return err
	}
	start := time.Now()
	for _, pid := range s.g2.Children(s.g2.proc.Pid()) { // the guardian was started, and the daemon is its child
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill: %w", err)
		}
	}
	reset := line{name: "kill -9 the gateway: the carried download", what: "ends with a reset, promptly"}
	select {
	case <-long.Done():
		reset.ok, reset.note = true, fmt.Sprintf("after %d ms", time.Since(start).Milliseconds())
	case <-time.After(10 * time.Second):
		reset.note = "still there after 10 s"
		_ = long.Kill()
	}
	s.report.add(reset)
	return s.next()
}

// carrying waits until the download is carried.
func (s *show) carrying() error {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	for {
		st, err := s.g2.admin.Status(ctx)
		if err != nil {
			return fmt.Errorf("status of h2: %w", err)
		}
		if st.Flows[report.CarrierShm] > 0 && st.BytesTotal[report.CarrierShm].Tx > 64<<20 {
			return nil
		}
		if err := testnet.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("the download is not carried: %w", err)
		}
	}
}

// next connects right after the death, and once more when the host has settled.
func (s *show) next() error {
	for _, step := range []struct {
		name, what string
		wait       time.Duration
		limit      int64
	}{
		{"the next connection, at once", "succeeds, native, within 2.1 s", 0, 2_100_000},
		{"a connection 2 s later", "succeeds, native, without delay", 2 * time.Second, 500_000},
	} {
		if err := testnet.Sleep(s.ctx, step.wait); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		e, err := s.h1.RunApp(ctx, "fetch", "-to", s.h2.AddrPort4(webPort).String(), "-size", "1000")
		cancel()
		l := line{name: step.name, what: step.what}
		l.ok = err == nil && e.Failed == 0 && e.Micros <= step.limit
		l.note = fmt.Sprintf("after %.1f ms %s", float64(e.Micros)/1000, e.Error)
		s.report.add(l)
	}
	return nil
}
