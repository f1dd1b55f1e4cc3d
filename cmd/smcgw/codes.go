package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/report"
)

func newCodes(e *env) *cobra.Command {
	c := &cobra.Command{
		Use:               "codes [NAME]",
		Short:             "Explain why connections are native or reset, or a gateway degraded",
		Args:              atMostOneArg,
		ValidArgsFunction: completeCodes,
		RunE: func(_ *cobra.Command, args []string) error {
			list := report.Codes()
			if len(args) == 1 {
				code, ok := findCode(list, args[0])
				if !ok {
					return usagef("%q is not a reason%s; \"smcgw codes\" lists them", args[0], meant(args[0], reasonNames()))
				}
				list.Codes = []report.Code{code}
			}
			if e.json {
				return e.printJSON(list)
			}
			if len(args) == 1 {
				return e.explain(list.Codes[0])
			}
			return e.list(screen.Listing{Rows: codeRows(list), Prose: true})
		},
	}
	return noun(e, withList(e, c))
}

// findCode looks up a reason by its name or number.
func findCode(list report.CodeList, arg string) (report.Code, bool) {
	for _, c := range list.Codes {
		if c.Name == arg || c.Code != 0 && strconv.Itoa(c.Code) == arg {
			return c, true
		}
	}
	return report.Code{}, false
}

// explain prints the manual page of one reason.
func (e *env) explain(c report.Code) error {
	s := e.screen(e.stdout)
	title := s.Paint(screen.Title, c.Name)
	if c.Code != 0 {
		title += fmt.Sprintf(" (%d)", c.Code)
	}
	text := title + "\n\n" + s.Field("Meaning:", c.Meaning) + s.Field("Fix:", c.Fix) + s.Field("Metric:", c.Metric)
	if c.EndMetric != "" {
		text += s.Field("", c.EndMetric)
	}
	_, err := fmt.Fprint(e.stdout, text)
	return printed(err)
}

func codeRows(list report.CodeList) [][]string {
	rows := [][]string{{"CODE", "NAME", "MEANING"}}
	for _, c := range list.Codes {
		rows = append(rows, []string{strings.TrimPrefix(strconv.Itoa(c.Code), "0"), c.Name, c.Meaning})
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
	for _, c := range report.Codes().Codes {
		list = append(list, c.Name)
	}
	return list
}
