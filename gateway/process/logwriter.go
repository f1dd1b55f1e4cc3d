package process

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// logRoom is how many bytes of log may wait for the writer; as many again may be in the
	// middle of being written.
	logRoom = 1 << 20
	// logPiece is the maximum number of bytes per write, unless a line is longer: what a pipe
	// accepts without mixing it with writes of another process (PIPE_BUF).
	logPiece = 4096
)

// LogWriter passes lines to a writer on a goroutine of its own, so that logging never blocks: a
// full or slow disk, or a pipe whose reader does not read, must not delay connections. Lines that
// do not fit in the queue, or that the writer refuses, are dropped and counted.
//
//	Write ──► queue (1 MiB) ──► goroutine ──► w
//
// It is safe for concurrent use. Create it with NewLogWriter.
type LogWriter struct {
	w         io.Writer
	recovered func(lost uint64)
	dropped   atomic.Uint64
	done      chan struct{}

	mu      sync.Mutex // guards everything below
	wake    sync.Cond
	pending []byte // whole lines
	spare   []byte // swapped with pending
	closed  bool
}

// NewLogWriter starts a writer of lines to w. When w accepts lines again after some were
// lost, recovered is called with their number, on the writer's goroutine; it may write to the
// LogWriter. It may be nil.
func NewLogWriter(w io.Writer, recovered func(lost uint64)) *LogWriter {
	l := &LogWriter{w: w, recovered: recovered, done: make(chan struct{})}
	l.wake.L = &l.mu
	go l.run()
	return l
}

// Write queues a copy of p, which must consist of whole lines. It never blocks and never
// fails.
func (l *LogWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.pending)+len(p) > logRoom {
		l.dropped.Add(linesOf(p))
		return len(p), nil
	}
	l.pending = append(l.pending, p...)
	l.wake.Signal()
	return len(p), nil
}

// Dropped returns how many lines have been lost since the start.
func (l *LogWriter) Dropped() uint64 { return l.dropped.Load() }

// Close accepts no more lines and waits, for at most patience, until those queued have been
// written. What w has not taken by then may still be written later.
func (l *LogWriter) Close(patience time.Duration) {
	l.mu.Lock()
	l.closed = true
	l.wake.Signal()
	l.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-l.done:
	case <-late.C:
	}
}

// run writes until the LogWriter is closed and empty.
func (l *LogWriter) run() {
	defer close(l.done)
	var out logOutput
	for {
		batch, ok := l.next()
		if !ok {
			return
		}
		lost := out.write(l.w, batch)
		total := l.dropped.Add(lost)
		l.mu.Lock()
		l.spare = batch[:0]
		l.mu.Unlock()
		if lost == 0 && total > out.told {
			since := total - out.told
			out.told = total
			if l.recovered != nil {
				l.recovered(since)
			}
		}
	}
}

// next waits for lines; false means that there will be no more.
func (l *LogWriter) next() ([]byte, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) == 0 && !l.closed {
		l.wake.Wait()
	}
	batch := l.pending
	l.pending, l.spare = l.spare, nil
	return batch, len(batch) > 0
}

// logOutput is the state of a LogWriter's goroutine about its output.
type logOutput struct {
	torn bool   // the last line was written only in part
	told uint64 // dropped lines that have been reported
}

// write writes a batch of lines in pieces and returns how many lines were lost.
func (o *logOutput) write(w io.Writer, batch []byte) (lost uint64) {
	for len(batch) > 0 {
		piece := batch[:pieceOf(batch)]
		batch = batch[len(piece):]
		if o.torn {
			if _, err := w.Write([]byte{'\n'}); err != nil {
				lost += linesOf(piece)
				continue
			}
			o.torn = false
		}
		if n, err := w.Write(piece); err != nil {
			lost += linesOf(piece[n:])
			o.torn = n > 0 && piece[n-1] != '\n'
		}
	}
	return lost
}

// pieceOf returns the length of the lines at the start of b that one write may take.
func pieceOf(b []byte) int {
	if len(b) <= logPiece {
		return len(b)
	}
	if n := bytes.LastIndexByte(b[:logPiece], '\n'); n >= 0 {
		return n + 1
	}
	if n := bytes.IndexByte(b, '\n'); n >= 0 {
		return n + 1
	}
	return len(b)
}

func linesOf(p []byte) uint64 { return uint64(bytes.Count(p, []byte{'\n'})) }

// journalHandler prefixes lines with the priority that journald parses (sd-daemon(3)). It
// keeps one text handler per priority, each with a writer that adds the prefix.
type journalHandler struct {
	levels map[slog.Level]slog.Handler
}

var _ slog.Handler = journalHandler{}

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

func (h journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.at(level).Enabled(ctx, level)
}

func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.at(r.Level).Handle(ctx, r)
}

func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(l slog.Handler) slog.Handler { return l.WithAttrs(attrs) })
}

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
