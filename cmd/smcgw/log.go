package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// logPatience is how long the process waits at its end for its log to be written.
const logPatience = time.Second

// logging is the log of a process: the logger, and the buffer between it and standard error.
type logging struct {
	*slog.Logger
	level slog.LevelVar
	out   *process.LogWriter
}

// startLog starts logging to standard error as configured. It never waits for the reader. The caller must close it.
func startLog(e *env, cfg config.Log) *logging {
	l := &logging{}
	ready := make(chan struct{})
	l.out = process.NewLogWriter(e.stderr, func(lost uint64) {
		<-ready
		l.Warn("log lines were lost: they could not be written", "count", lost)
	})
	l.level.Set(cfg.Level.Slog())
	l.Logger = newLogger(e, cfg, &l.level, l.out)
	close(ready)
	return l
}

func (l *logging) close() { l.out.Close(logPatience) }

// newLogger returns a logger to w, which leads to standard error, as configured. Under journald the lines carry its
// priorities and no time.
func newLogger(e *env, cfg config.Log, level slog.Leveler, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	journal := e.getenv("JOURNAL_STREAM") != ""
	switch {
	case cfg.Format == config.LogJSON, cfg.Format == config.LogAuto && !journal && terminalColumns(e.stderr) == 0:
		return slog.New(slog.NewJSONHandler(w, opts))
	case journal:
		return slog.New(process.NewJournalHandler(w, opts))
	default:
		return slog.New(slog.NewTextHandler(w, opts))
	}
}
