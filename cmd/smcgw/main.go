package main

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

func main() { os.Exit(run(context.Background(), osEnv(), os.Args[1:])) }

// run executes one command line and returns the exit status.
func run(ctx context.Context, e *env, args []string) int {
	root := newRoot(e)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	return e.status(c, err)
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "smcgw",
		Short: "Move the bytes of unmodified programs' connections by shared memory or RDMA",
		Long: `smcgw moves the bytes of unmodified programs' connections over shared memory or
RDMA where both ends can, and leaves every other connection to the kernel,
untouched. Programs of one host start with "smcgw run" or "smcgw preload enable"
and need nothing else; between hosts, "smcgw up" runs on both.

Exit status: 0 done, 1 failed, 2 usage, 3 daemon not reachable, 4 check or doctor
found errors, or ping a native connection, 5 degraded (status --strict).`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		Version:       buildVersion(),
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if err := c.ValidateFlagGroups(); err != nil { // cobra does so only after this
				return flagError(c, err)
			}
			e.started = true
			return e.checkOutput()
		},
		RunE: func(*cobra.Command, []string) error {
			return usagef("no command given: \"smcgw status\" shows what the gateway does")
		},
	}
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddGroup(&cobra.Group{ID: groupNouns, Title: "What is going on:"}, &cobra.Group{ID: groupVerbs, Title: "Doing something:"})
	root.SetHelpCommand(newHelp(e))
	root.SetFlagErrorFunc(flagError)
	out := e.screen(e.stdout)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped "+strconv.Itoa(out.Width())))
	root.SetVersionTemplate("smcgw {{.Version}}\n")
	for _, verb := range verbs() {
		root.AddCommand(verb(e))
	}
	for _, c := range append(root.Commands(), root) {
		c.Long = out.Prose(c.Long)
		for _, below := range c.Commands() {
			below.Long = out.Prose(below.Long)
		}
	}
	return root
}

// The groups of the help text.
const (
	groupNouns = "nouns"
	groupVerbs = "verbs"
)

// verbs lists the constructors of all verbs.
func verbs() []func(*env) *cobra.Command {
	return []func(*env) *cobra.Command{
		newStatus, newStats, newConns, newWatch, newTop, newPeers, newPolicy, newDevices, newCodes, newVersion,
		newUp, newKeepLegs, newSpareLegs, newKeepBroker, newSucceed, newReload, newRun, newDrain, newOff, newOn, newSet, newDemote, newCheck, newCleanup, newCompletion, newBench,
		newDoctor, newPing, newBugreport, newPreload,
	}
}

// noun makes a command that changes nothing and offers --json.
func noun(e *env, c *cobra.Command) *cobra.Command {
	c.GroupID = groupNouns
	return withJSON(e, c)
}

// verb makes a command that changes something and offers --json.
func verb(e *env, c *cobra.Command) *cobra.Command {
	c.GroupID = groupVerbs
	return withJSON(e, c)
}

func withJSON(e *env, c *cobra.Command) *cobra.Command {
	if c.Args == nil {
		c.Args = noArgs
	}
	c.Flags().BoolVar(&e.json, "json", false, "print one JSON document")
	return c
}

// withSocket adds --socket.
func withSocket(e *env, c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&e.socket, "socket", "", "admin socket of the daemon (default: admin in "+config.DefaultPath+")")
	return c
}

// client returns a client of the daemon at --socket, else at the given path.
func (e *env) client(socket string) *admin.Client { return admin.NewClient(cmp.Or(e.socket, socket)) }

// reach returns a client of the daemon at daemonAt.
func (e *env) reach() *admin.Client { return admin.NewClient(e.daemonAt()) }

// daemonAt returns the path of the admin socket: --socket, else that of the service's configuration file.
func (e *env) daemonAt() string { return cmp.Or(e.socket, config.AdminIn(e.service)) }

// defaultConfig returns the configuration of an empty file.
func defaultConfig() config.Config { return config.Config{}.WithDefaults() }
