package process

import (
	"context"
	"io"
	"log/slog"
)

// journalHandler prefixes lines with the priority that journald parses (sd-daemon(3)). It
// keeps one text handler per priority, each with a writer that adds the prefix.
type journalHandler struct {
	levels map[slog.Level]slog.Handler
}

// NewJournalHandler logs lines with journal priorities and without times, which the journal
// adds.
func NewJournalHandler(w io.Writer, opts *slog.HandlerOptions) slog.Handler {
	plain := *opts
	plain.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		if opts.ReplaceAttr == nil {
			return a
		}
		return opts.ReplaceAttr(groups, a)
	}
	h := journalHandler{levels: make(map[slog.Level]slog.Handler)}
	for level, prefix := range map[slog.Level]string{
		slog.LevelDebug: "<7>", slog.LevelInfo: "<6>", slog.LevelWarn: "<4>", slog.LevelError: "<3>",
	} {
		h.levels[level] = slog.NewTextHandler(prefixWriter{w, prefix}, &plain)
	}
	return h
}

// at returns the handler of the priority that a level belongs to.
func (h journalHandler) at(level slog.Level) slog.Handler {
	switch {
	case level >= slog.LevelError:
		return h.levels[slog.LevelError]
	case level >= slog.LevelWarn:
		return h.levels[slog.LevelWarn]
	case level >= slog.LevelInfo:
		return h.levels[slog.LevelInfo]
	default:
		return h.levels[slog.LevelDebug]
	}
}

// Enabled implements slog.Handler.
func (h journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.at(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.at(r.Level).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(l slog.Handler) slog.Handler { return l.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	return h.each(func(l slog.Handler) slog.Handler { return l.WithGroup(name) })
}

func (h journalHandler) each(fn func(slog.Handler) slog.Handler) slog.Handler {
	out := journalHandler{levels: make(map[slog.Level]slog.Handler, len(h.levels))}
	for level, l := range h.levels {
		out.levels[level] = fn(l)
	}
	return out
}

// prefixWriter writes a prefix before each line, which must arrive in a single call.
type prefixWriter struct {
	w      io.Writer
	prefix string
}

// Write implements io.Writer.
func (p prefixWriter) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
