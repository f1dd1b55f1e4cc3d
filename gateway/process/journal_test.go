package process

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
