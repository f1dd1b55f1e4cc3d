package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/suggest"
	"github.com/smcgw/smcgw/gateway/config"
)

func newPolicySuggest(e *env) *cobra.Command {
	var percent string
	c := &cobra.Command{
		Use:   "suggest",
		Short: "Propose rules for what was seen in the mode observe",
		Long: `Suggest prints a configuration with a rule for each service whose connections were
bulk in the mode observe, so that carrying them may pay, and says of the others why
there is none. Services that a rule carries already are left out. It changes nothing:
put the rules that you want in the configuration, and look at it with "smcgw check".`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := config.ParseShare(percent); err != nil {
				return usagef("--percent: %v", err)
			}
			p, err := e.policy(cmd)
			if err != nil {
				return err
			}
			text, rules := suggest.Configuration(&p, percent)
			if e.json {
				return e.printJSON(suggestionDoc{Schema: suggestionSchema, Rules: rules, Configuration: text})
			}
			_, err = fmt.Fprint(e.stdout, text)
			return printed(err)
		},
	}
	c.Flags().StringVar(&percent, "percent", "10%", "rollout.percent of the configuration")
	return withSocket(e, withJSON(e, c))
}

// suggestionSchema versions the document of policy suggest.
const suggestionSchema = "smcgw.suggestion/v1"

type suggestionDoc struct {
	Schema string `json:"schema"`
	// Rules is how many rules Configuration has, a file in YAML.
	Rules         int    `json:"rules"`
	Configuration string `json:"configuration"`
}
