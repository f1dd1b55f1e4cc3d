// Command smcgw-lab runs the project's demonstrations and measurements on hosts that it makes from network namespaces.
//
// It is separate so that smcgw, which runs as root on the hosts of others, links nothing of the laboratory. The
// gateways of the hosts are smcgw itself, the file beside this one unless --smcgw names another.
//
// The trap: depending on an environment variable, this program also acts as the ordinary programs of its hosts.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench"
)

func main() {
	apps.Init(bench.Apps()...)
	os.Exit(run(context.Background(), os.Stdout, os.Stderr, os.Args[1:]))
}

// The exit statuses are those of smcgw.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// laboratory is the state that the verbs share.
type laboratory struct {
	stdout, stderr io.Writer
	smcgw          string // --smcgw
	started        bool   // the command line was understood
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it immediately
	l := &laboratory{stdout: stdout, stderr: stderr}
	root := l.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case l.started:
		fmt.Fprintln(stderr, "smcgw-lab:", err)
		return exitFailed
	default:
		fmt.Fprintf(stderr, "smcgw-lab: %v\nSee \"smcgw-lab --help\".\n", err)
		return exitUsage
	}
}

func (l *laboratory) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "smcgw-lab",
		Short: "Show and measure smcgw on hosts made for the purpose",
		Long: `smcgw-lab makes hosts out of network namespaces, runs smcgw and ordinary
programs on them, and cleans up after itself.

Exit status: 0 done, 1 failed, 2 usage.`,
		SilenceErrors:    true,
		SilenceUsage:     true,
		Args:             cobra.NoArgs,
		PersistentPreRun: func(c *cobra.Command, _ []string) { l.started = c.HasParent() },
		RunE:             func(*cobra.Command, []string) error { return errNoVerb },
	}
	root.SetOut(l.stdout)
	root.SetErr(l.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&l.smcgw, "smcgw", "", "the gateway that the hosts run (default smcgw beside this program)")
	root.AddCommand(l.demo(), l.bench())
	return root
}

var errNoVerb = errors.New("no verb given")

// gateway returns the path of the program that the hosts run.
func (l *laboratory) gateway() (string, error) {
	file := l.smcgw
	if file == "" {
		own, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("this program's file: %w", err)
		}
		file = filepath.Join(filepath.Dir(own), "smcgw")
	}
	return program(file)
}

// program returns the path of a named gateway.
func program(file string) (string, error) {
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("the gateway (make build makes it, --smcgw names another): %w", err)
	}
	return filepath.Abs(file)
}
