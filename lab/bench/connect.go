package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// connectProgram measures connect(2) alone, which no common program does: ADDRESS COUNT GAP. It blocks, as programs
// with a thread per connection do, because times of goroutines would include those of Go's scheduler. It prints the
// median in microseconds.
const connectProgram = "bench-connect"

// Apps returns the programs of the comparisons, for [apps.Init].
func Apps() []apps.App {
	return []apps.App{ours(connectProgram, connectAll), ours(rcProgram, rcMain)}
}

// ours returns a program that prints a value as JSON, or an error.
func ours(name string, run func(args []string) (any, error)) apps.App {
	return apps.App{Name: name, Run: func(args []string, _ func(apps.Event)) error {
		v, err := run(args)
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(v)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
		return err
	}}
}

// runOurs runs one of our programs on a host and decodes its output into v.
func (h *host) runOurs(ctx context.Context, v any, args ...string) error {
	cmd := h.AppCommand(ctx, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s on %s: %w: %s", args[0], h.Name, err, strings.TrimSpace(stderr.String()))
	}
	if err := json.Unmarshal(out, v); err != nil {
		return fmt.Errorf("%s: %w: %w", args[0], testnet.ErrOutput, err)
	}
	return nil
}

func connectAll(args []string) (any, error) {
	if len(args) != 3 {
		return nil, flag.ErrHelp
	}
	to, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return nil, err
	}
	count, err := strconv.Atoi(args[1])
	if err != nil || count < 1 {
		return nil, fmt.Errorf("%w: a count is positive: %s", flag.ErrHelp, args[1])
	}
	gap, err := time.ParseDuration(args[2])
	if err != nil {
		return nil, err
	}
	took := make([]time.Duration, count)
	for i := range took {
		if took[i], err = connectOnce(to); err != nil {
			return nil, err
		}
		time.Sleep(gap)
	}
	slices.Sort(took)
	return float64(took[count/2].Nanoseconds()) / 1e3, nil
}

func connectOnce(to netip.AddrPort) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	at := sockaddr.Of(to)
	start := time.Now()
	err = unix.Connect(fd, at)
	for errors.Is(err, unix.EINTR) {
		if err = unix.Connect(fd, at); errors.Is(err, unix.EISCONN) {
			err = nil
		}
	}
	return time.Since(start), os.NewSyscallError("connect", err)
}
