package main

import "github.com/spf13/cobra"

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
