package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// checkSchema names the format of checkDoc.
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
	// RDMA is what the kernel reports about the host's adapters.
	RDMA sysfs.RDMA `json:"rdma"`
}

func newCheck(e *env) *cobra.Command {
	var path string
	var quiet bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration file and show what it means",
		Long: `Check reads a configuration file. It prints every error with its line, also what
keeps the gateway of this host from starting with a valid file, and exits with 4, or
prints the effective configuration with the origin of every value, notes about what
may not do what was meant, and the RDMA adapters of this host. With -q it prints the
errors alone.`,
		RunE: func(*cobra.Command, []string) error {
			f, err := e.loadForHost(path)
			errs := config.FieldErrors(err)
			if f == nil && len(errs) == 0 {
				return err // the file cannot be read
			}
			host, err := e.rdma()
			if err != nil {
				return err
			}
			switch {
			case e.json:
				err = e.checkJSON(path, f, errs, host)
			case quiet:
				err = printFieldErrors(e.stdout, path, errs)
			default:
				err = e.checkText(path, f, errs, host)
			}
			if err == nil && len(errs) > 0 {
				return &exitError{exitFindings, errSaid}
			}
			return err
		},
	}
	addConfigFlag(c, &path, config.DefaultPath)
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only errors")
	return verb(e, c)
}

func (e *env) checkText(path string, f *config.File, errs []*config.FieldError, host sysfs.RDMA) error {
	if len(errs) > 0 {
		return printFieldErrors(e.stdout, path, errs)
	}
	text, err := f.YAML()
	if err != nil {
		return err
	}
	for _, n := range checkNotes(f, &host) {
		text = fmt.Appendf(text, "# note: %s\n", n)
	}
	for _, n := range adapterNotes(&f.Config, &host) {
		text = fmt.Appendf(text, "# adapter: %s\n", n)
	}
	_, err = e.stdout.Write(text)
	return printed(err)
}

// checkNotes returns notes about the file, and about the file on this host.
func checkNotes(f *config.File, host *sysfs.RDMA) []string {
	usable := false
	notes := append(f.Notes(), inspect.DeviceNotes(f.Config.Devices, slices.Contains(f.Config.Carriers, report.DeviceIB))...)
	eachPort(host, func(a *sysfs.Adapter, p *sysfs.Port) { usable = usable || p.Unusable == "" && a.RoCE(p) })
	if slices.Equal(f.Config.Carriers, []report.DeviceKind{report.DeviceHW}) && !usable {
		notes = append(notes, "carriers: only hw, and this host has no RDMA adapter that can be used: every connection stays native")
	}
	return notes
}

func (e *env) checkJSON(path string, f *config.File, errs []*config.FieldError, host sysfs.RDMA) error {
	doc := checkDoc{Schema: checkSchema, File: path, OK: len(errs) == 0, Errors: errs, Notes: []string{}, RDMA: host}
	if errs == nil {
		doc.Errors = []*config.FieldError{}
	}
	if f != nil {
		text, err := f.YAML()
		if err != nil {
			return err
		}
		doc.Config = string(text)
		doc.Notes = append(doc.Notes, checkNotes(f, &host)...)
	}
	return e.printJSON(doc)
}

// loadForHost reads a configuration. A file that is valid may come with an error: what keeps the gateway from starting.
func (e *env) loadForHost(path string) (*config.File, error) {
	f, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	runsAs := config.Account{}
	if path == e.service && e.runsAs != nil {
		runsAs = e.runsAs()
	}
	return f, f.Hindrances(runsAs)
}

// serviceAccount returns the account of the packaged unit, with what drop-ins change; zero without systemd or the unit.
func serviceAccount() config.Account {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=User,Group,SupplementaryGroups", "smcgw.service").Output()
	if err != nil {
		return config.Account{}
	}
	return accountOf(string(out))
}

// accountOf reads lines such as User=smcgw.
func accountOf(properties string) (a config.Account) {
	for line := range strings.Lines(properties) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); name == "User" {
			a.User = value
		} else {
			a.Groups = append(a.Groups, strings.Fields(value)...)
		}
	}
	return a
}

// loadConfig reads a configuration for a verb that needs it, and prints all its errors.
func (e *env) loadConfig(path string) (config.Config, error) {
	c, err := config.Effective(path)
	if errs := config.FieldErrors(err); len(errs) > 0 {
		_ = printFieldErrors(e.stderr, path, errs) // the status says it, too
		return c, &exitError{exitFailed, errors.New("configuration not usable")}
	}
	return c, err
}

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
