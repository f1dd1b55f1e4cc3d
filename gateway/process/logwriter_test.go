package process

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sluggish is a log's disk or reader: it blocks, fails, or takes a part.
type sluggish struct {
	mu    sync.Mutex
	got   bytes.Buffer
	gate  chan struct{} // nil: does not block
	room  int           // bytes until it fails; -1: any number
	short bool          // it takes what fits before it fails
}

var errDiskFull = errors.New("disk full")

func (s *sluggish) Write(p []byte) (int, error) {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room < 0 || len(p) <= s.room {
		if s.room >= 0 {
			s.room -= len(p)
		}
		return s.got.Write(p)
	}
	n := 0
	if s.short {
		n, _ = s.got.Write(p[:s.room])
		s.room = 0
	}
	return n, errDiskFull
}

func (s *sluggish) set(room int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = room
}

func (s *sluggish) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func TestLogWriterKeepsLinesAndOrder(t *testing.T) {
	w := &sluggish{room: -1}
	l := NewLogWriter(w, nil)
	var want strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", i%300))
		want.WriteString(line)
		n, err := l.Write([]byte(line))
		require.NoError(t, err)
		require.Equal(t, len(line), n)
	}
	l.Close(30 * time.Second)
	require.Equal(t, want.String(), w.text())
	require.Zero(t, l.Dropped())
	_, _ = l.Write([]byte("late\n"))
	require.EqualValues(t, 1, l.Dropped())
}

// TestLogWriterNeverWaits: the reader does not read. The logging goroutine goes
// on, what the queue holds is bounded, and the rest is counted.
func TestLogWriterNeverWaits(t *testing.T) {
	w := &sluggish{room: -1, gate: make(chan struct{})}
	lost := make(chan uint64, 1)
	l := NewLogWriter(w, func(n uint64) { lost <- n })
	line := []byte(strings.Repeat("x", 1023) + "\n")
	const lines = 4 * logRoom / 1024
	for range lines {
		_, _ = l.Write(line)
	}
	dropped := l.Dropped()
	require.GreaterOrEqual(t, dropped, uint64(lines-2*logRoom/1024-1))
	close(w.gate)
	require.Equal(t, dropped, <-lost)
	l.Close(30 * time.Second)
	require.EqualValues(t, lines, uint64(strings.Count(w.text(), "\n"))+dropped)
}

func TestLogWriterCloseDoesNotWaitForEver(t *testing.T) {
	w := &sluggish{room: -1, gate: make(chan struct{})}
	l := NewLogWriter(w, nil)
	_, _ = l.Write([]byte("a\n"))
	l.Close(10 * time.Millisecond)
	close(w.gate)
	<-l.done
	require.Equal(t, "a\n", w.text())
}

// TestLogWriterModel: whatever fails when, each line arrives whole and in order
// or is counted; only one that the output cut short is there in part.
func TestLogWriterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &sluggish{room: rapid.IntRange(0, 9000).Draw(t, "room"), short: rapid.Bool().Draw(t, "short")}
		var out logOutput
		written := uint64(0)
		lost := uint64(0)
		for i := range rapid.IntRange(1, 12).Draw(t, "batches") {
			var batch []byte
			for range rapid.IntRange(1, 8).Draw(t, "lines") {
				batch = append(batch, fmt.Sprintf("%06d %s\n", written, strings.Repeat("y", rapid.IntRange(0, 5000).Draw(t, "length")))...)
				written++
			}
			lost += out.write(w, batch)
			if i%3 == 2 {
				w.set(rapid.IntRange(0, 20000).Draw(t, "room"))
			}
		}
		last, whole := -1, uint64(0)
		for line := range strings.Lines(w.text()) {
			var n int
			body := strings.TrimRight(line, "\n")
			if len(body) < 7 || body[6] != ' ' || strings.Trim(body[7:], "y") != "" {
				continue // cut short
			}
			_, err := fmt.Sscanf(body, "%06d", &n)
			if err != nil || n <= last {
				t.Fatalf("line %q after %d", body[:min(len(body), 20)], last)
			}
			last = n
			whole++
		}
		if whole+lost < written || !w.short && whole+lost != written {
			t.Fatalf("%d whole and %d lost of %d", whole, lost, written)
		}
	})
}

// TestLogWriterUnderSlog: handlers write a record at a time.
func TestLogWriterUnderSlog(t *testing.T) {
	w := &sluggish{room: -1}
	l := NewLogWriter(w, nil)
	log := slog.New(slog.NewTextHandler(l, nil))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 200 {
				log.Info("something", "worker", i)
			}
		})
	}
	all.Wait()
	l.Close(30 * time.Second)
	require.Equal(t, 1600, strings.Count(w.text(), "msg=something worker="))
}

// Lines for the journal have a priority and neither time nor level, and what the options
// make of their values.
func TestJournal(t *testing.T) {
	var out strings.Builder
	log := slog.New(NewJournalHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelInfo,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.String() == "secret" {
				return slog.Attr{}
			}
			return a
		},
	}))
	log.Debug("no")
	log.With("a", 1).Info("yes", "b", "secret")
	log.WithGroup("g").Error("bad", "error", errors.New("x"))
	require.Equal(t, "<6>msg=yes a=1\n<3>msg=bad g.error=x\n", out.String())
}
