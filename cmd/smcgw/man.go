package main

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
)

func newMan(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "man [COMMAND]",
		Short: "Show the manual page of a command",
		Long: `Man shows the manual page of a command, by man(1): "smcgw man status" is "man smcgw-status".
Where the page or man(1) is not installed it prints what "smcgw help" does.`,
		GroupID:           groupVerbs,
		ValidArgsFunction: completeCommand,
		RunE: func(c *cobra.Command, args []string) error {
			at, err := commandNamed(c, args)
			if err != nil {
				return err
			}
			page := strings.ReplaceAll(at.CommandPath(), " ", "-")
			if exec.CommandContext(c.Context(), "man", "--where", "1", page).Run() != nil {
				fmt.Fprintf(e.stderr, "smcgw: the manual page %s(1) is not installed: this is smcgw help\n", page)
				return at.Help()
			}
			man := exec.CommandContext(c.Context(), "man", "1", page)
			man.Stdin, man.Stdout, man.Stderr = c.InOrStdin(), e.stdout, e.stderr
			if err := man.Run(); err != nil {
				return fmt.Errorf("man: %w", err)
			}
			return nil
		},
	}
}
