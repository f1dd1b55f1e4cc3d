package inprocess

import (
	"context"
	"os"
	"os/exec"
	"sync"
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
	if made {
		if b, err := built(); err == nil {
			_ = b.Close()
		}
	}
	os.Exit(status)
}

// made is set once built was called.
var made bool

// built builds the library and the test programs once for all tests.
var built = sync.OnceValues(func() (*world.Build, error) {
	made = true
	return world.New("another", "closed", "closes", "crowd", "foreign", "forked", "hostile", "sandbox", "semantics", "stall", "stress", "twin")
})

// build returns what built has built, or skips the test where there is no compiler.
func build(t *testing.T) *world.Build {
	t.Helper()
	if _, err := exec.LookPath(world.Compiler); err != nil {
		t.Skip("no " + world.Compiler)
	}
	b, err := built()
	require.NoError(t, err)
	return b
}

// newWorld opens a world with the library for the duration of a test.
func newWorld(t *testing.T, th broker.Thresholds) *world.World {
	t.Helper()
	return openWorld(t, build(t).Library(), broker.Config{Thresholds: th})
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
