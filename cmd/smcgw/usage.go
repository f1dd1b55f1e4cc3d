package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/smcgw/smcgw/internal/nearest"
)

// meant suggests what was probably meant.
func meant(given string, known []string) string {
	if name := nearest.Name(given, known); name != "" {
		return fmt.Sprintf(" (did you mean %s?)", name)
	}
	return ""
}

// noArgs is for commands without arguments. For a command with subcommands, an argument was meant as one.
func noArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case c.HasAvailableSubCommands():
		return usagef("unknown command %q for %q%s", args[0], c.CommandPath(), meant(args[0], names(c)))
	default:
		return usagef("%s takes no argument such as %q", path(c), args[0])
	}
}

// atMostOneArg is for commands with one argument, or none.
func atMostOneArg(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%s takes one argument at most, not also %q", path(c), args[1])
	}
	return nil
}

// oneOfArgs is for commands that take one of their ValidArgs.
func oneOfArgs(c *cobra.Command, args []string) error {
	known := strings.Join(c.ValidArgs, ", ")
	switch {
	case len(args) != 1:
		return usagef("%s takes one argument: %s", path(c), known)
	case cobra.OnlyValidArgs(c, args) != nil:
		return usagef("%q is not one of %s%s", args[0], known, meant(args[0], c.ValidArgs))
	}
	return nil
}

// path returns a command's name without that of the program, unless it is the program.
func path(c *cobra.Command) string { return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ") }

// names returns the names of the commands below one.
func names(c *cobra.Command) (list []string) {
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			list = append(list, sub.Name())
		}
	}
	return list
}

// unknownFlag matches cobra's error for an unknown flag, with its name.
var unknownFlag = regexp.MustCompile(`^unknown flag: --(\S+)$`)

// flagError suggests which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if number, ok := errors.AsType[*strconv.NumError](err); ok {
			what := "is not a whole number"
			if errors.Is(number, strconv.ErrRange) {
				what = "is out of range"
			}
			return usagef("%s: --%s: %q %s", path(c), wrong.GetFlag().Name, wrong.GetValue(), what)
		}
	}
	hint := ""
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		var known []string
		c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
		hint = meant("--"+m[1], known)
	}
	return usagef("%s: %w%s", path(c), err, hint)
}

// newHelp is cobra's help command, except that it fails for unknown commands.
func newHelp(*env) *cobra.Command {
	return &cobra.Command{
		Use:               "help [COMMAND]",
		Short:             "Explain a command",
		GroupID:           groupVerbs,
		ValidArgsFunction: completeCommand,
		RunE: func(c *cobra.Command, args []string) error {
			at, err := commandNamed(c, args)
			if err != nil {
				return err
			}
			return at.Help()
		},
	}
}

// completeCommand completes the name of a command.
func completeCommand(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if at, _, err := c.Root().Find(args); err == nil {
		return names(at), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// commandNamed returns the command that the arguments of c name, or the program itself without arguments.
func commandNamed(c *cobra.Command, args []string) (*cobra.Command, error) {
	at, rest, err := c.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("no such command %q%s", strings.Join(args, " "), meant(rest[0], names(at)))
	}
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("%s: %w", c.Name(), err)}
	}
	at.InitDefaultHelpFlag()
	return at, nil
}

func newCompletion(*env) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes command lines in a shell",
		Long: `Completion prints the script for one shell. For bash:

  smcgw completion bash > /etc/bash_completion.d/smcgw`,
		GroupID:   groupVerbs,
		ValidArgs: []cobra.Completion{"bash", "zsh", "fish"},
		Args:      oneOfArgs,
		RunE: func(c *cobra.Command, args []string) error {
			switch root, out := c.Root(), c.OutOrStdout(); args[0] {
			case "bash":
				return printed(root.GenBashCompletionV2(out, false))
			case "zsh":
				return printed(root.GenZshCompletionNoDesc(out))
			default:
				return printed(root.GenFishCompletion(out, false))
			}
		},
	}
}
