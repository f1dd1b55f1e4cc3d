package between

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

func TestMain(m *testing.M) {
	status := leak.Main(m)
	if made {
		if b, err := built(); err == nil {
			_ = b.Close()
		}
	}
	os.Exit(status)
}

var made bool

var built = sync.OnceValues(func() (*world.Build, error) {
	made = true
	return world.New("crowd", "semantics", "stress")
})

func build(t *testing.T) *world.Build {
	t.Helper()
	if _, err := exec.LookPath(world.Compiler); err != nil {
		t.Skip("no " + world.Compiler)
	}
	b, err := built()
	require.NoError(t, err)
	return b
}

func open(t *testing.T, f Faults) *Hosts {
	t.Helper()
	h, err := Open(f, matrix.Seed(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// run runs a program with the library, or natively where h is nil.
func run(t *testing.T, h *Hosts, within time.Duration, name string, args ...string) (string, error) {
	t.Helper()
	b := build(t)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c := exec.CommandContext(ctx, b.Program(name), args...)
	if h != nil {
		c.Env = append(os.Environ(), "SMCGW_SOCKET="+h.Socket(), "LD_PRELOAD="+b.Library())
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		return "", err
	}
	began := time.Now()
	err := c.Wait()
	took := time.Since(began)
	if h != nil {
		t.Logf("%s: %v, promoted %d, ring bytes %d, missed bells %d, struck %d: %s", name, took, h.Promoted.Load(), h.Moved.Load(), h.Missed.Load(), h.Struck.Load(), out.String())
	}
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	return out.String(), err
}

func seed(t *testing.T) string { return strconv.FormatUint(matrix.Seed(t)%(1<<32), 10) }

var ways = []string{"bb", "ll", "ee", "oo", "pp", "ss", "qq", "LL", "BB", "bl", "eb", "pe", "so", "OQ"}

// TestEveryByte: both directions at once, all ways of waiting.
func TestEveryByte(t *testing.T) {
	for i, modes := range ways {
		family, window := []string{"4", "6", "m"}[i%3], []string{"0", "4096"}[i%2]
		t.Run(modes+family, func(t *testing.T) {
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			said, err := run(t, h, time.Minute, "stress", modes, family, "0.7", seed(t), window)
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load(), "native: %s", said)
			require.Zero(t, h.Missed.Load(), "bells")
		})
	}
}

// TestFaults: carriers, gateways and recalls, at any byte.
func TestFaults(t *testing.T) {
	for name, f := range map[string]Faults{
		"carrier": {Carrier: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
		"gateway": {Gateway: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
		"recall":  {Recall: 1, Within: 100 * time.Millisecond, Delay: 3 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, f)
			said, err := run(t, h, 5*time.Minute, "stress", "??", "4", "0.2", seed(t), "?", "-", "30")
			require.NoError(t, err, said)
			require.NotZero(t, h.Struck.Load(), said)
			require.NotZero(t, h.Moved.Load(), said)
		})
	}
}

// TestEndsThatAreKilled: the other end sees what it natively may see.
func TestEndsThatAreKilled(t *testing.T) {
	for _, how := range []string{"k", "s", "c", "r", "x"} {
		t.Run(how, func(t *testing.T) {
			args := []string{"??", "4", "0.1", seed(t), "0", how, "20"}
			said, err := run(t, nil, 5*time.Minute, "stress", args...)
			require.NoError(t, err, "natively: %s", said)
			h := open(t, Faults{Delay: 3 * time.Millisecond})
			said, err = run(t, h, 5*time.Minute, "stress", args...)
			require.NoError(t, err, said)
			require.NotZero(t, h.Moved.Load())
		})
	}
}
