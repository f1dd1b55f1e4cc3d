package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

func TestSizesAndAges(t *testing.T) {
	for n, want := range map[uint64]string{0: "0B", 1023: "1023B", 1024: "1KiB", 600000000: "572.2MiB", 5 << 20: "5MiB", 1 << 63: "8EiB"} {
		require.Equal(t, want, screen.Size(n))
	}
	for s, want := range map[float64]string{0: "0s", 0.01234: "12ms", 1.26: "1.3s", 61.4: "1m1s", 3600: "1h0m0s"} {
		require.Equal(t, want, age(s))
	}
}

// On a terminal no line is longer than 100 columns, and states have colours unless NO_COLOR
// is set; a pipe gets whole cells and no colour.
func TestOnATerminal(t *testing.T) {
	_, cfg := serveFake(t, "degraded")
	show := func(columns int, noColor string, args ...string) string {
		e, stdout, stderr := testEnv()
		e.terminal = func(io.Writer) int { return columns }
		e.getenv = func(name string) string { return map[string]string{"NO_COLOR": noColor}[name] }
		require.Equal(t, exitOK, run(t.Context(), e, append(args, "--socket", cfg.Admin)), stderr)
		return stdout.String()
	}
	escape := regexp.MustCompile(`\x1b\[[0-9;]*m`)
	for _, verb := range []string{
		"status", "stats", "conns --all", "peers", "devices", "devices --counters", "devices --adapters",
	} {
		out := show(200, "", strings.Fields(verb)...)
		require.Regexp(t, escape, out, verb)
		for line := range strings.Lines(escape.ReplaceAllString(out, "")) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), screen.Columns+1, verb)
		}
		require.NotContains(t, show(200, "1", strings.Fields(verb)...), "\x1b", verb)
		require.NotContains(t, show(0, "", strings.Fields(verb)...), "\x1b", verb)
	}
	require.Contains(t, show(50, "", "conns", "--all"), "…")
	require.NotContains(t, show(0, "", "conns", "--all"), "…")
	require.NotContains(t, show(50, "", "conns", "--all", "-o", "wide"), "…")
}

func TestExitStatuses(t *testing.T) {
	for _, c := range []struct {
		err     error
		started bool
		want    int
	}{
		{nil, true, exitOK},
		{errors.New("x"), true, exitFailed},
		{errors.New("x"), false, exitUsage},
		{usagef("x"), true, exitUsage},
		{fmt.Errorf("a: %w", admin.ErrDaemonUnreachable), true, exitUnreachable},
		{&exitError{exitUsage, errSaid}, true, exitUsage}, // of the command of run
		{&exitError{exitFindings, errSaid}, true, exitFindings},
		{&exitError{exitDegraded, errSaid}, true, exitDegraded},
	} {
		e, stdout, stderr := testEnv()
		e.started = c.started
		require.Equal(t, c.want, e.status(&cobra.Command{Use: "smcgw"}, c.err))
		require.Empty(t, stdout.String())
		require.Equal(t, c.err == nil || errors.Is(c.err, errSaid), stderr.Len() == 0)
	}
}

// TestStatsOfATime: what began meanwhile is not what began since the start.
func TestStatsOfATime(t *testing.T) {
	st := report.Stats{InProcess: report.InProcess{Enabled: true, Serving: true, Connections: 2, ConnectionsTotal: 1}}
	for span, want := range map[bool]string{false: "2 connections, 1 since the start, ", true: "2 connections, 1 began, "} {
		e, stdout, _ := testEnv()
		require.NoError(t, e.showStats(st, span))
		require.Contains(t, stdout.String(), want)
	}
}

// TestCheckUnread: a configuration that could not be printed was not shown.
func TestCheckUnread(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	file := t.TempDir() + "/smcgw.yaml"
	for _, text := range []string{"mode: observe", "mode: none"} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		e, _, stderr := testEnv()
		e.stdout, e.rdma = full, func() (sysfs.RDMA, error) { return sysfs.RDMA{}, nil }
		require.Equal(t, exitFailed, run(t.Context(), e, []string{"check", "-c", file}))
		require.Contains(t, stderr.String(), "no space left on device")
	}
}

// TestNameOthers: a verb that finds no gateway at the usual socket names those that root sees, or says how to start one.
func TestNameOthers(t *testing.T) {
	here := []machine.Found{{PID: 41, Here: true, Path: "/run/a.sock", Socket: "/run/a.sock"}, {PID: 42, Path: "/b", Socket: "/b"}, {PID: 43, Here: true}}
	for _, socket := range []string{"", t.TempDir() + "/s"} {
		e, _, stderr := testEnv()
		e.service = t.TempDir() + "/smcgw.yaml"
		require.NoError(t, os.WriteFile(e.service, []byte("admin: "+e.service+".sock"), 0o600))
		e.gateways = func(context.Context) ([]machine.Found, error) { return here, nil }
		args := []string{"reload"}
		if socket != "" {
			args = append(args, "--socket", socket)
		}
		require.Equal(t, exitUnreachable, run(t.Context(), e, args))
		require.Equal(t, socket == "", strings.HasSuffix(stderr.String(), "\ngateway of process 41 at /run/a.sock: --socket /run/a.sock asks it\n"), stderr)
		require.NotContains(t, stderr.String(), "systemctl start")
		e.gateways = func(context.Context) ([]machine.Found, error) { return here[1:], nil }
		require.Equal(t, exitUnreachable, run(t.Context(), e, args))
		require.Equal(t, socket == "", strings.Contains(stderr.String(), "\n\"systemctl start smcgw\" starts it, "), stderr)
	}
}

// TestStatusOfAHungGateway: the wait bounds each of its questions, too.
func TestStatusOfAHungGateway(t *testing.T) {
	hung, err := net.Listen("unix", t.TempDir()+"/hung.sock") // connections are made, and no answer comes
	require.NoError(t, err)
	defer hung.Close()
	e, _, stderr := testEnv()
	begun := time.Now()
	require.Equal(t, exitUnreachable, run(t.Context(), e, []string{"status", "--wait", "1s", "--socket", hung.Addr().String()}), stderr)
	require.Less(t, time.Since(begun), 8*time.Second)
}

func TestLogFormats(t *testing.T) {
	log := func(cfg config.Log, journal string) string {
		var out bytes.Buffer
		e := &env{stderr: &out, getenv: func(string) string { return journal }}
		l := newLogger(e, cfg, cfg.Level.Slog(), e.stderr).With("a", 1).WithGroup("g")
		l.Debug("quiet")
		l.Warn("loud", "b", 2)
		l.Log(t.Context(), slog.LevelError+4, "louder")
		return out.String()
	}
	cfg := config.Log{Level: config.LogInfo, Format: config.LogAuto}
	require.Contains(t, log(cfg, ""), `"level":"WARN","msg":"loud","a":1,"g":{"b":2}}`)
	require.Equal(t, "<4>msg=loud a=1 g.b=2\n<3>msg=louder a=1\n", log(cfg, "8:1"))
	cfg.Format = config.LogText
	require.Contains(t, log(cfg, ""), "level=WARN msg=loud a=1 g.b=2\n")
	cfg.Format, cfg.Level = config.LogJSON, config.LogDebug
	require.Contains(t, log(cfg, "8:1"), `"msg":"quiet"`)
}

// TestLogValues: times have units, names are words, and what says nothing has no field.
func TestLogValues(t *testing.T) {
	var out bytes.Buffer
	e := &env{stderr: &out, getenv: func(string) string { return "" }}
	var none error
	var list []string
	l := newLogger(e, config.Log{Format: config.LogJSON}, slog.LevelDebug, &out)
	l.Info("line", "timeout", 600*time.Second, "error", none, "devices", list, "empty", "", "carrier", report.CarrierNone,
		"reason", stage(3), "failure", errors.New("broken"), "zero", 0, "addr", netip.MustParseAddr("::1"), "off", false)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &doc))
	delete(doc, "time")
	require.Equal(t, map[string]any{
		"level": "INFO", "msg": "line", "timeout": "10m0s", "reason": "stage(3)", "failure": "broken", "zero": 0.0, "addr": "::1", "off": false,
	}, doc)
}

// stage is a number with a name, as enums of the gateway are.
type stage int

func (s stage) String() string { return fmt.Sprintf("stage(%d)", int(s)) }

// TestLogLevelChanges: the level of a logger is that of its variable, also under journald.
func TestLogLevelChanges(t *testing.T) {
	for _, journal := range []string{"", "8:1"} {
		var out bytes.Buffer
		e := &env{stderr: &out, getenv: func(string) string { return journal }}
		l := startLog(e, config.Log{Level: config.LogInfo, Format: config.LogAuto})
		l.Debug("first")
		l.level.Set(slog.LevelDebug)
		l.Debug("second")
		l.close()
		require.NotContains(t, out.String(), "first")
		require.Contains(t, out.String(), "second")
	}
}

// TestLostEvents: a gap among events has a line.
func TestLostEvents(t *testing.T) {
	e, stdout, _ := testEnv()
	e.noHeader = true
	require.NoError(t, e.showEvent()(report.Event{Event: report.EventLost, Lost: 7}))
	require.Regexp(t, `^[0-9:.]+ lost +7 events: they came too fast\n$`, stdout)
}

// TestOtherVersion: a gateway that drains has its successor already.
func TestOtherVersion(t *testing.T) {
	e, _, _ := testEnv()
	s := e.screen(io.Discard)
	require.Contains(t, details(s, report.Status{Version: "9.9.9"}, ""), "smcgw reload has it take over")
	require.NotContains(t, details(s, report.Status{Version: "9.9.9", Draining: &report.DrainInfo{}}, ""), "take over")
	require.NotContains(t, details(s, report.Status{Version: buildVersion()}, ""), "take over")
}

// TestStatusOfWhatHappened: status tells of carriers that were used, and of native UDP.
func TestStatusOfWhatHappened(t *testing.T) {
	e, _, _ := testEnv()
	s := e.screen(io.Discard)
	udp := report.Status{UDP: report.ProtoStats{Native: map[string]uint64{"peer_unresolved": 3, "policy": 0}}}
	require.Contains(t, details(s, udp, ""), "native     none\n           UDP pairs: peer_unresolved 3\n")
	require.NotContains(t, details(s, report.Status{}, ""), "UDP")
	unused := report.Status{Flows: map[report.Carrier]int{report.CarrierSoft: 0}, FlowsTotal: map[report.Carrier]uint64{report.CarrierSoft: 0}}
	require.NotContains(t, details(s, unused, ""), "rdma-soft")
}

// Each reason is explained once, and a service without an answer has a remedy, within the
// lines of a terminal.
func TestPingSummary(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.2:6379")
	r := &bench.PingReport{Native: 2, Failed: 2, Minimum: 0.0001, Median: 0.0002, Maximum: 0.0003, Tries: []bench.PingTry{
		{Service: at, Reason: "policy", DecidedBy: "local"},
		{Service: at, Reason: "policy", DecidedBy: "local"},
		{Service: at, Error: bench.NoAnswer},
		{Service: at, Error: bench.NoAnswer},
	}}
	require.Equal(t, ""+
		"0 carried, 0 relayed, 2 native, 2 without a connection; connect 100µs / 200µs /\n"+
		"300µs (least, median, most)\n"+
		"policy: No policy rule selects this connection.\n"+
		"  > Add a rule with action accelerate; with `way: in-process` it selects\n"+
		"    programs with the library only. The first rule that matches decides; `smcgw\n"+
		"    policy` lists them in order.\n"+
		"  > smcgw ping --offer says what the peer would do.\n"+
		"no answer: Nothing came back, although the SYN is sent again without the offer.\n"+
		"  > Look at the service, the firewall of its host and the way there. smcgw off\n"+
		"    and another try show that it is the same without smcgw.\n",
		pingSummary(screen.New(nil, 80, false), r))
	require.Equal(t, "10.0.0.2:6379  3  1.5ms  no connection: connection refused",
		pingLine(bench.PingTry{Service: at, Sequence: 3, ConnectSeconds: 0.0015, Error: "connection refused"}))
}

// An operator at an empty list is told where the connections are; a pipe is not.
func TestHintOfConns(t *testing.T) {
	for _, c := range []struct {
		terminal int
		query    report.ConnQuery
		conns    []report.ConnInfo
		hints    bool
	}{
		{80, report.ConnQuery{}, nil, true},
		{0, report.ConnQuery{}, nil, false},
		{80, report.ConnQuery{Closed: true}, nil, false},
		{80, report.ConnQuery{All: true}, nil, false},
		{80, report.ConnQuery{}, []report.ConnInfo{{ID: 1}}, false},
	} {
		e, stdout, stderr := testEnv()
		e.terminal = func(io.Writer) int { return c.terminal }
		f := connsFlags{query: c.query}
		require.NoError(t, f.hint(e, admin.ConnList{Conns: c.conns}))
		require.Empty(t, stdout.String())
		if c.hints {
			require.Contains(t, stderr.String(), "--native those left native")
		} else {
			require.Empty(t, stderr.String())
		}
	}
}

func FuzzParsePeers(f *testing.F) {
	for _, text := range []string{"10.0.0.1", "[fd00::1]", "10.0.0.0/8", "fd00::/129", "::ffff:10.0.0.1", "fe80::1%eth0", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePeers(text)
		if err == nil {
			require.True(t, p.IsValid())
			require.Equal(t, p, p.Masked())
			again, err := parsePeers(p.String())
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
	})
}

func TestAccountOf(t *testing.T) {
	require.Equal(t, config.Account{User: "smcgw", Groups: []string{"smcgw", "a", "b"}}, accountOf("User=smcgw\nGroup=smcgw\nSupplementaryGroups=a b\n"))
	require.Equal(t, config.Account{}, accountOf("User=\nGroup=\nSupplementaryGroups=\n"))
}

// TestKeysOfTheService: root can read keys that the service cannot; only the file of the service is its.
func TestKeysOfTheService(t *testing.T) {
	testnet.Require(t, "root")
	dir := t.TempDir()
	key, file := filepath.Join(dir, "psk"), filepath.Join(dir, "smcgw.yaml")
	require.NoError(t, os.WriteFile(key, []byte("0123456789abcdef"), 0o600))
	require.NoError(t, os.WriteFile(file, []byte("security: { psk_file: "+key+" }"), 0o600))
	check := func(service string) (int, string) {
		e, stdout, _ := testEnv()
		e.rdma = func() (sysfs.RDMA, error) { return sysfs.RDMA{}, nil }
		e.service, e.runsAs = service, func() config.Account { return config.Account{User: "nobody"} }
		return run(t.Context(), e, []string{"check", "-q", "-c", file}), stdout.String()
	}
	status, said := check(file)
	require.Equal(t, exitFindings, status)
	require.Contains(t, said, "security.psk_file: key file: open "+key+": permission denied")
	status, said = check("/another/file")
	require.Equal(t, exitOK, status)
	require.Empty(t, said)
}
