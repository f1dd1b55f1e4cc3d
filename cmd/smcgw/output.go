package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

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

// printed says that it was the output that could not be written.
func printed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("print: %w", err)
}

// table prints rows in columns, the first row as the header. Cells that are
// empty become "-", so that a row always has as many fields as its header.
func table(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return printed(tw.Flush())
}

// size renders a number of bytes for people.
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if u == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

// age renders seconds for people, with as much precision as they care for.
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
