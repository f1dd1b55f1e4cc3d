package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/config"
)

// checkSchema versions the document of check.
const checkSchema = "smcgw.check/v1"

// checkDoc is the document of check.
type checkDoc struct {
	Schema string               `json:"schema"`
	File   string               `json:"file"`
	OK     bool                 `json:"ok"`
	Errors []*config.FieldError `json:"errors"`
	Notes  []string             `json:"notes"`
	// Config is the effective configuration as YAML.
	Config string `json:"config,omitempty"`
}

func newCheck(e *env) *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration file and show what it means",
		Long: `Check reads a configuration file. It prints every error with its line and exits
with 4, or prints the effective configuration with the origin of every value,
and notes about what may not do what was meant.`,
		RunE: func(*cobra.Command, []string) error {
			f, err := config.Load(path)
			errs := config.FieldErrors(err)
			if err != nil && len(errs) == 0 {
				return err // not readable at all
			}
			if e.json {
				err = e.checkJSON(path, f, errs)
			} else {
				err = e.checkText(path, f, errs)
			}
			if err == nil && len(errs) > 0 {
				return &exitError{exitFindings, errSaid}
			}
			return err
		},
	}
	addConfigFlag(c, &path, config.DefaultPath)
	return verb(e, c)
}

func (e *env) checkText(path string, f *config.File, errs []*config.FieldError) error {
	if len(errs) > 0 {
		printFieldErrors(e.stdout, path, errs)
		return nil
	}
	text, err := f.YAML()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "%s", text)
	for _, n := range f.Config.Notes() {
		fmt.Fprintf(e.stdout, "# note: %s\n", n)
	}
	return nil
}

func (e *env) checkJSON(path string, f *config.File, errs []*config.FieldError) error {
	doc := checkDoc{Schema: checkSchema, File: path, OK: len(errs) == 0, Errors: errs, Notes: []string{}}
	if errs == nil {
		doc.Errors = []*config.FieldError{}
	}
	if f != nil {
		text, err := f.YAML()
		if err != nil {
			return err
		}
		doc.Config = string(text)
		doc.Notes = append(doc.Notes, f.Config.Notes()...)
	}
	return e.printJSON(doc)
}

// loadConfig reads a configuration for a verb that needs it. All its errors
// are printed.
func (e *env) loadConfig(path string) (config.Config, error) {
	f, err := config.Load(path)
	if errs := config.FieldErrors(err); len(errs) > 0 {
		printFieldErrors(e.stderr, path, errs)
		return config.Config{}, &exitError{exitFailed, errors.New("configuration not usable")}
	}
	if err != nil {
		return config.Config{}, err
	}
	return f.Config, nil
}
