package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
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

// readable formats the value of a log line for people and programs alike: a duration with its unit, a named value by
// its name. It drops fields without information: a nil error, an empty list or text.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindString:
		if a.Value.String() == "" {
			return slog.Attr{}
		}
	case slog.KindAny:
		return readableAny(a)
	default:
	}
	return a
}

func readableAny(a slog.Attr) slog.Attr {
	v := a.Value.Any()
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return slog.Attr{}
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Func, reflect.Interface:
		if r.IsNil() || r.Kind() != reflect.Pointer && r.Kind() != reflect.Func && r.Len() == 0 {
			return slog.Attr{}
		}
	case reflect.String:
		if r.Len() == 0 {
			return slog.Attr{}
		}
	default:
	}
	switch v := v.(type) {
	case error, json.Marshaler, encoding.TextMarshaler: // left to the handler
	case fmt.Stringer:
		a.Value = slog.StringValue(v.String())
	}
	return a
}
