package guardian

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// Heartbeat is the guardian's view of the map that holds the daemon's heartbeat.
type Heartbeat interface {
	// Read returns the time of the last beat on any clock, or 0 before the first.
	Read() (time.Duration, error)
	// Stop makes the programs treat the gateway as dead from now on.
	Stop() error
}

// Times are the guardian's periods. The zero value means the defaults.
type Times struct {
	// Tick is how often the heartbeat is checked. Default: 100ms.
	Tick time.Duration
	// StuckTicks is the number of ticks without a beat after which the daemon is killed.
	// Default: 20. Before the first beat it is five times as many.
	StuckTicks int
	// Linger is how long the steering outlives a daemon. Default: 1s.
	Linger time.Duration
	// Backoff is the first pause before a dead guardian is replaced again. It doubles up to a
	// hundred times its value. Default: 100ms.
	Backoff time.Duration
}

func (t Times) withDefaults() Times {
	setIfZero(&t.Tick, 100*time.Millisecond)
	setIfZero(&t.StuckTicks, 20)
	setIfZero(&t.Linger, time.Second)
	setIfZero(&t.Backoff, 100*time.Millisecond)
	return t
}

func setIfZero[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// Options configure Supervise.
type Options struct {
	// Args is the command line with which the program starts itself again, program name
	// first. Default: os.Args.
	Args []string
	// Env is added to the environment of the processes started.
	Env []string
	// Keep is what Kept decodes in a guardian that replaces a dead one, so that it need not
	// read a file.
	Keep any
	// Times are the periods.
	Times Times
	// OpenHeartbeat wraps the file handed to Protect. Default: the eBPF map.
	OpenHeartbeat func(*fdpass.File) Heartbeat
	// Tidy removes what a daemon that died unexpectedly left behind, such as routing rules.
	// It is called once the steering is gone. If a daemon started meanwhile has done so
	// already, that is not an error. Default: does nothing.
	Tidy func() error
	// Notify tells the service manager, which listens only to the process that it has
	// started. It may block. Default: sd_notify(3).
	Notify func(state string) error
	// Logger receives the log of the guardian. Default: discards it.
	Logger *slog.Logger
	// Level is the level of Logger, which the daemon can change. Default: fixed.
	Level *slog.LevelVar
}

func (o Options) withDefaults() Options {
	if o.Args == nil {
		o.Args = os.Args
	}
	if o.Tidy == nil {
		o.Tidy = func() error { return nil }
	}
	if o.Notify == nil {
		o.Notify = process.Notify
	}
	if o.OpenHeartbeat == nil {
		o.OpenHeartbeat = func(f *fdpass.File) Heartbeat { return mapHeartbeat{f} }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Times = o.Times.withDefaults()
	return o
}

// The processes of one gateway pass their roles in the environment, and descriptors under
// fixed numbers.
const (
	roleDaemon   = "daemon"   // started by a guardian
	roleGuardian = "guardian" // started by a daemon in place of a dead one

	controlFD = 3 // both: socket to the other
	pidFD     = 4 // roleGuardian: pidfd of the daemon
)

// Supervise splits the program in two: a small parent, and a child in which Supervise returns a
// Ward and the gateway then runs. In the parent it returns a nil Ward once the child has ended,
// with the status to exit with. The program must call it before it opens anything. See
// docs/ARCHITECTURE.md "When the gateway dies".
//
//	smcgw up ── guardian ──fd 3── daemon      the daemon ends: heartbeat to 0, 1 s, end
//	                └ X           daemon ──fd 3── guardian     the guardian ends: a new one
func Supervise(ctx context.Context, o Options) (*Ward, int, error) {
	o = o.withDefaults()
	role := os.Getenv(process.RoleEnv)
	if err := os.Unsetenv(process.RoleEnv); err != nil {
		return nil, 1, fmt.Errorf("clear %s: %w", process.RoleEnv, err)
	}
	setProcessName(o, role)
	switch role {
	case "":
		status, err := guardNewDaemon(ctx, o)
		return nil, status, err
	case roleGuardian:
		return nil, 0, guardOldDaemon(ctx, o)
	case roleDaemon:
		conn, err := inheritedConn()
		if err != nil {
			return nil, 1, err
		}
		return newWard(o, conn), 0, nil
	default:
		return nil, 1, fmt.Errorf("%s=%q is not a role", process.RoleEnv, role)
	}
}

// setProcessName makes guardian and daemon distinguishable in ps and top; a process started
// from /proc/self/exe would be called exe. It is a convenience, so errors are ignored.
func setProcessName(o Options, role string) {
	name := filepath.Base(o.Args[0])
	if role != roleDaemon {
		name += "-guardian"
	}
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0)
}
