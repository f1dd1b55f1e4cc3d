package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/lab/apps"
)

func main() {
	apps.Init()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:]))
}

// command is main with its context and arguments; it returns the exit status.
func command(ctx context.Context, args []string) int {
	o := options{out: os.Stdout}
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.DurationVar(&o.length, "for", 10*time.Minute, "how long there is load")
	fs.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "what everything random is drawn from")
	fs.StringVar(&o.executable, "smcgw", os.Getenv("SMCGW_BINARY"), "the gateway; built if not given")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	dir, err := os.MkdirTemp("", "smcgw-soak-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	o.dir = dir
	total, err := run(ctx, o)
	switch {
	case err == nil && total.errors == 0:
		_ = os.RemoveAll(dir)
	default:
		fmt.Fprintln(o.out, "logs of the gateways are kept in", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	fmt.Fprintln(o.out, total)
	if err != nil || total.errors > 0 {
		return 1
	}
	return 0
}

// errNoBinary says that there is no gateway to run.
var errNoBinary = errors.New("no gateway to run")

// build builds the gateway from the sources around the working directory.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "smcgw")
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/smcgw/smcgw/cmd/smcgw").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %w: %s", errNoBinary, err, out)
	}
	return path, nil
}
