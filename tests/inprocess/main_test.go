package inprocess

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	world.Init()
	status := leak.Main(m)
	_ = shared.Close()
	os.Exit(status)
}

// shared is the library and the test programs.
var shared = world.Share("another", "closed", "closes", "crowd", "foreign", "forked", "hostile", "sandbox", "semantics", "stall", "stress", "twin")

// newWorld opens a world with the library for the duration of a test.
func newWorld(t *testing.T, th broker.Thresholds) *world.World {
	t.Helper()
	return openWorld(t, shared.For(t).Library(), broker.Config{Thresholds: th})
}

func openWorld(t *testing.T, library string, c broker.Config) *world.World {
	t.Helper()
	w, err := world.Open(library, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// run runs a program with the library, or natively if w is nil, and returns its output.
func run(w *world.World, within time.Duration, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return w.Run(ctx, env, name, args...)
}
