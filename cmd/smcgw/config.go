package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/config"
)

// addConfigFlag adds -c.
func addConfigFlag(c *cobra.Command, path *string, def string) {
	c.Flags().StringVarP(path, "config", "c", def, "configuration file")
}

// printFieldErrors prints one error per line, as compilers do.
func printFieldErrors(w io.Writer, file string, errs []*config.FieldError) error {
	for _, fe := range errs {
		where := file
		if fe.Line > 0 {
			where = fmt.Sprintf("%s:%d", file, fe.Line)
		}
		if fe.Path != "" {
			where += ": " + fe.Path
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", where, fe.Msg); err != nil {
			return printed(err)
		}
	}
	return nil
}

// configFor returns the configuration for a verb that only needs paths of it: from the given file, else from the
// default file, else the defaults.
func (e *env) configFor(path string) (config.Config, error) {
	if path != "" {
		return e.loadConfig(path)
	}
	f, err := config.Load(e.service)
	if err == nil {
		return f.Config, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(e.stderr, "smcgw: %s not usable, defaults taken\n", e.service)
	}
	return defaultConfig(), nil
}
