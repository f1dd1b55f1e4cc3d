package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
)

func newCodes(e *env) *cobra.Command {
	var noHeader bool
	c := &cobra.Command{
		Use:               "codes [NAME]",
		Short:             "Explain the reasons for which a connection is not carried",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeCodes,
		RunE: func(_ *cobra.Command, args []string) error {
			list := admin.Codes()
			if len(args) == 1 {
				code, ok := findCode(list, args[0])
				if !ok {
					return usagef("%q is not a reason%s; \"smcgw codes\" lists them", args[0], meant(args[0], reasonNames()))
				}
				list.Codes = []admin.Code{code}
			}
			if e.json {
				return e.printJSON(list)
			}
			if len(args) == 1 {
				_, err := fmt.Fprint(e.stdout, explain(list.Codes[0]))
				return printed(err)
			}
			return table(e.stdout, codeRows(list, noHeader))
		},
	}
	c.Flags().BoolVar(&noHeader, "no-header", false, "print no header line")
	return noun(e, c)
}

// findCode finds a reason by its name or its number.
func findCode(list admin.CodeList, arg string) (admin.Code, bool) {
	for _, c := range list.Codes {
		if c.Name == arg || strconv.Itoa(c.Code) == arg {
			return c, true
		}
	}
	return admin.Code{}, false
}

// explain is the manual page of one reason.
func explain(c admin.Code) string {
	return fmt.Sprintf("%s (%d)\n\nMeaning: %s\nFix:     %s\nMetric:  %s\n", c.Name, c.Code, c.Meaning, c.Fix, c.Metric)
}

func codeRows(list admin.CodeList, noHeader bool) [][]string {
	rows := [][]string{{"CODE", "NAME", "MEANING"}}
	if noHeader {
		rows = nil
	}
	for _, c := range list.Codes {
		rows = append(rows, []string{strconv.Itoa(c.Code), c.Name, c.Meaning})
	}
	return rows
}

// completeCodes completes the name of a reason.
func completeCodes(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var list []string
	for _, name := range reasonNames() {
		if len(args) == 0 && strings.HasPrefix(name, prefix) {
			list = append(list, name)
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

func reasonNames() (list []string) {
	for _, c := range admin.Codes().Codes {
		list = append(list, c.Name)
	}
	return list
}
