package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/screen"
	"github.com/smcgw/smcgw/gateway/admin"
)

// printJSON prints a document on one line.
func (e *env) printJSON(doc any) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	return printed(enc.Encode(doc))
}

// done reports what a verb did.
func (e *env) done(r admin.Result) error {
	if e.json {
		r.Schema = admin.ResultSchema
		return e.printJSON(r)
	}
	_, err := fmt.Fprintln(e.stdout, r.Message)
	return printed(err)
}

// answered is done for the answer of a daemon.
func (e *env) answered(r admin.Result, err error) error {
	if err != nil {
		return err
	}
	return e.done(r)
}

// printed wraps an error of writing the output.
func printed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("print: %w", err)
}

// terminalColumns returns the width of a terminal, or 0 if w is not one.
func terminalColumns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		return screen.Columns
	}
	return columns
}

// screen returns the screen for output to people. It obeys NO_COLOR (no-color.org).
func (e *env) screen(w io.Writer) *screen.Screen {
	columns := 0
	if e.terminal != nil {
		columns = e.terminal(w)
	}
	return screen.New(w, columns, columns > 0 && e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb")
}

// list prints a table according to the flags of withList.
func (e *env) list(l screen.Listing) error {
	l.NoHeader, l.All = e.noHeader, e.output == outputWide
	return printed(e.screen(e.stdout).List(l))
}

// Values of --output.
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
)

// withList adds the flags of commands that print a table.
func withList(e *env, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&e.noHeader, "no-header", false, "print no header line")
	c.Flags().StringVarP(&e.output, "output", "o", outputTable, "table, wide (all columns, nothing shortened) or json")
	return c
}

// checkOutput refuses unknown values of --output.
func (e *env) checkOutput() error {
	known := []string{outputTable, outputWide, outputJSON}
	if e.output != "" && !slices.Contains(known, e.output) {
		return usagef("--output: %q is not one of %s%s", e.output, strings.Join(known, ", "), meant(e.output, known))
	}
	e.json = e.json || e.output == outputJSON
	return nil
}

// plural renders a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

// age renders seconds for people, rounded.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
