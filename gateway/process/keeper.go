package process

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// LegsVerb is the argument with which the program becomes the keeper of the legs'
// namespace and has to call KeepLegs.
const LegsVerb = "keep-legs"

// SpareVerb is the argument with which the program becomes the spare of the keeper and has
// to call SpareLegs.
const SpareVerb = "spare-legs"

// LegsEnv names the descriptor of the connection to the keeper.
const LegsEnv = "SMCGW_LEGS"

// LegsFD is that of a daemon that has a guardian.
const LegsFD = 4

// startLegs starts the keeper of the legs' namespace for the gateway that this
// process is going to be, or to guard. A process that such a one has started has it
// already, or needs none.
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

// Settle has the program of a gateway without a guardian begin again in this process
// after Confine, with the keeper that it has started: only then have all threads the same
// credentials, as those of a daemon have that a guardian starts (see alreadyConfined). It
// returns where the program has begun again.
func Settle() error {
	fd, err := strconv.Atoi(os.Getenv(LegsEnv))
	if err != nil {
		return fmt.Errorf("%s: %w", LegsEnv, errNotInherited)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		return fmt.Errorf("connection to the keeper: %w", err)
	}
	if flags&unix.FD_CLOEXEC == 0 { // it came with the program
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags&^unix.FD_CLOEXEC); err != nil {
		return fmt.Errorf("connection to the keeper: %w", err)
	}
	return fmt.Errorf("begin anew: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// InheritedLegs takes over the connection that another process, or Confine in this
// one, has left.
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

// OpenLegs returns the namespace of the legs that Confine has had made.
func OpenLegs() (*legs.Namespace, error) {
	conn, err := InheritedLegs()
	if err != nil {
		return nil, err
	}
	return legs.Open(conn)
}

// KeepLegs is the keeper: it gives up what it does not need, and answers until its
// gateway has ended.
func KeepLegs() error {
	if err := beginLegs(LegsVerb, "smcgw-legs"); err != nil {
		return err
	}
	return legs.Serve([]string{os.Args[0], SpareVerb})
}

// SpareLegs is the spare of the keeper, which becomes the keeper when that has died, and
// ends with the gateway.
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

// keeperFD is where keeper and spare have their connection.
const keeperFD = 3
