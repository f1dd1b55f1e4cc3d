package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

func TestSizesAndAges(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 1 << 63: "8.0 EiB"} {
		require.Equal(t, want, size(n))
	}
	for s, want := range map[float64]string{0: "0s", 0.01234: "12ms", 1.26: "1.3s", 61.4: "1m1s", 3600: "1h0m0s"} {
		require.Equal(t, want, age(s))
	}
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
		{&exitError{exitFindings, errSaid}, true, exitFindings},
		{&exitError{exitDegraded, errSaid}, true, exitDegraded},
	} {
		e, stdout, stderr := testEnv()
		e.started = c.started
		require.Equal(t, c.want, e.status(c.err))
		require.Empty(t, stdout.String())
		require.Equal(t, c.err == nil || errors.Is(c.err, errSaid), stderr.Len() == 0)
	}
}

func TestLogFormats(t *testing.T) {
	log := func(cfg config.Log, journal string) string {
		var out bytes.Buffer
		e := &env{stderr: &out, getenv: func(string) string { return journal }}
		l := newLogger(e, cfg, e.stderr).With("a", 1).WithGroup("g")
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
