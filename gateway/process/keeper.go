package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// LegsVerb is the argument that makes the program the keeper of the legs' namespace; it must
// then call KeepLegs.
const LegsVerb = "keep-legs"

// SpareVerb is the argument that makes the program the spare of the keeper; it must then call
// SpareLegs.
const SpareVerb = "spare-legs"

// LegsEnv names the descriptor of the connection to the keeper.
const LegsEnv = "SMCGW_LEGS"

// LegsFD is that descriptor in a daemon that has a guardian.
const LegsFD = 4

// startLegs starts the keeper of the legs' namespace, for the gateway that this process will
// be or guard. A process started by such a process has a keeper already, or needs none.
func startLegs() error {
	if os.Getenv(RoleEnv) != "" || os.Getenv(LegsEnv) != "" {
		return nil
	}
	conn, err := legs.Start([]string{os.Args[0], LegsVerb})
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(conn.Fd(), unix.F_DUPFD_CLOEXEC, LegsFD)
	_ = conn.Close()
	if err != nil {
		return fmt.Errorf("connection to the keeper: %w", err)
	}
	return os.Setenv(LegsEnv, strconv.Itoa(fd))
}

// Settle makes the program of a gateway without a guardian start over in this process after
// Confine, with the keeper that it has started. Only then do all threads have the same
// credentials, as in a daemon started by a guardian (see alreadyConfined). It returns nil
// once the program has started over.
func Settle() error {
	fd, err := strconv.Atoi(os.Getenv(LegsEnv))
	if err != nil {
		return fmt.Errorf("%s: %w", LegsEnv, errNotInherited)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		return fmt.Errorf("connection to the keeper: %w", err)
	}
	if flags&unix.FD_CLOEXEC == 0 { // inherited: the program has started over
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags&^unix.FD_CLOEXEC); err != nil {
		return fmt.Errorf("connection to the keeper: %w", err)
	}
	return fmt.Errorf("begin anew: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// InheritedLegs takes over the connection left by another process, or by Confine in this one.
func InheritedLegs() (*os.File, error) {
	text := os.Getenv(LegsEnv)
	if err := os.Unsetenv(LegsEnv); err != nil {
		return nil, fmt.Errorf("clear %s: %w", LegsEnv, err)
	}
	fd, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", LegsEnv, text, errNotInherited)
	}
	return InheritedFile(fd, "connection to the keeper of the legs")
}

// OpenLegs returns the namespace of the legs that Confine has created.
func OpenLegs() (*legs.Namespace, error) {
	conn, err := InheritedLegs()
	if err != nil {
		return nil, err
	}
	return legs.Open(conn)
}

// KeepLegs runs the keeper: it gives up what it does not need, and serves until its gateway
// has ended.
func KeepLegs() error {
	if err := beginLegs(LegsVerb, "smcgw-legs"); err != nil {
		return err
	}
	return legs.Serve([]string{os.Args[0], SpareVerb})
}

// SpareLegs runs the spare of the keeper, which becomes the keeper when that dies, and ends
// with the gateway.
func SpareLegs() error {
	if err := beginLegs(SpareVerb, "smcgw-spare"); err != nil {
		return err
	}
	return legs.Stand([]string{os.Args[0], LegsVerb})
}

func beginLegs(verb, name string) error {
	if _, err := unix.FcntlInt(keeperFD, unix.F_GETFD, 0); err != nil {
		return fmt.Errorf("%s is started by smcgw itself: %w", verb, err)
	}
	if err := confineTo(cap.NET_ADMIN); err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0)
	return nil
}

// keeperFD is the descriptor of the connection in keeper and spare.
const keeperFD = 3

// Lane runs work that the kernel may block without limit, such as access to a file on a
// server that does not answer. It runs one at a time, so that what is blocked stays bounded.
// The zero value is ready to use.
type Lane struct {
	made sync.Once
	work chan struct{} // capacity 1: full while work is running
}

// Through returns what work returns, or the cause of the end of ctx if that comes first. In
// the latter case work that has begun continues on its own, and later work waits until it has
// returned.
func Through[T any](ctx context.Context, l *Lane, work func() (T, error)) (out T, err error) {
	l.made.Do(func() { l.work = make(chan struct{}, 1) })
	select {
	case l.work <- struct{}{}:
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
	type answer struct {
		out T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := work()
		<-l.work
		done <- answer{out, err}
	}()
	select {
	case a := <-done:
		return a.out, a.err
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
}

// Do is [Through] for work that returns only an error.
func (l *Lane) Do(ctx context.Context, work func() error) error {
	_, err := Through(ctx, l, func() (struct{}, error) { return struct{}{}, work() })
	return err
}
