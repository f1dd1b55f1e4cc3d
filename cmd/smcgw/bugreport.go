package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bugreport"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/doctor"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// reportPatience bounds the time for collecting.
const reportPatience = 2 * time.Minute

func newBugreport(e *env) *cobra.Command {
	var configPath, output string
	var diagnose bool
	c := &cobra.Command{
		Use:   "bugreport",
		Short: "Collect what a report about a gateway needs in one archive",
		Long: `Bugreport writes a .tar.gz of what the daemon says (status, statistics, connections,
peers, devices, metrics), the effective configuration, what doctor finds, the programs
and maps in the kernel, lines of the kernel's log about them, and the last 5000 lines of
the unit smcgw.service in the journal. It needs no daemon.
Keys are in none of it: whatever is found of the key file is replaced. Addresses, ports
and names of rules are in it. As root it collects most.

With --diagnose it prints what stands out instead: findings of doctor that are not ok,
and why the last connections were native or aborted.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), reportPatience)
			defer cancel()
			if diagnose && output != "" {
				return usagef("bugreport: one of --diagnose and --output")
			}
			s, err := e.subject(ctx, configPath, "")
			if err != nil {
				return err
			}
			c := e.client(s.Config.Admin)
			defer c.Close()
			if diagnose {
				return e.diagnose(ctx, c, s)
			}
			return e.collect(ctx, c, s, output)
		},
	}
	addConfigFlag(c, &configPath, "")
	c.Flags().StringVarP(&output, "output", "o", "", "file of the archive, - for standard output (default smcgw-bugreport-TIME.tar.gz here)")
	c.Flags().BoolVar(&diagnose, "diagnose", false, "print what stands out, and write no archive")
	return withSocket(e, verb(e, c))
}

// diagnosis summarizes what doctor and the daemon report.
func (e *env) diagnosis(ctx context.Context, c *admin.Client, r doctor.Report, asked bool) (doctor.Diagnosis, error) {
	if !asked {
		return doctor.Diagnose(r, nil, nil), nil
	}
	native, err := c.Conns(ctx, report.ConnQuery{All: true})
	ended, errEnded := c.Conns(ctx, report.ConnQuery{Closed: true})
	return doctor.Diagnose(r, native.Conns, ended.Conns), errors.Join(err, errEnded)
}

func (e *env) diagnose(ctx context.Context, c *admin.Client, s doctor.Subject) error {
	d, err := e.diagnosis(ctx, c, doctor.Examine(ctx, e.host, s), answers(s))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err = d.Text(&b); e.json {
		b.Reset()
		err = json.NewEncoder(&b).Encode(d)
	}
	if err != nil {
		return err
	}
	text, _ := bugreport.Redact(b.Bytes(), e.secrets(s)) // users send this output to others, too
	_, err = e.stdout.Write(text)
	return printed(err)
}

// answers reports whether a daemon answers the caller's requests.
func answers(s doctor.Subject) bool { return s.Daemon != nil && s.Daemon.Problem == "" }

// collect writes the archive.
func (e *env) collect(ctx context.Context, c *admin.Client, s doctor.Subject, output string) error {
	made := time.Now()
	if output == "" {
		output = "smcgw-bugreport-" + made.UTC().Format("20060102-150405") + ".tar.gz"
	}
	if output == "-" && e.json {
		return usagef("bugreport: --json prints to standard output, and so does --output -")
	}
	var to io.WriteCloser = nopCloser{e.stdout}
	if output != "-" {
		f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("bugreport: %w", err)
		}
		to = f
	}
	m, err := bugreport.Write(ctx, to, e.parts(c, s), e.secrets(s), made)
	if err = errors.Join(err, to.Close()); err != nil {
		if output != "-" {
			err = errors.Join(err, os.Remove(output))
		}
		return err
	}
	if output == "-" {
		return nil
	}
	if m.File = output; e.json {
		return e.printJSON(m)
	}
	for _, entry := range m.Entries {
		if entry.Error != "" {
			fmt.Fprintf(e.stderr, "smcgw: %s: %s\n", entry.Name, entry.Error)
		}
	}
	_, err = fmt.Fprintf(e.stdout, "%s\nNo key is in it. Addresses, ports and names of rules are: look before you send it.\n", output)
	return printed(err)
}

type nopCloser struct{ io.Writer }

// Close implements io.Closer.
func (nopCloser) Close() error { return nil }

// secrets returns the keys of the configuration, and the token of a measurement.
func (e *env) secrets(s doctor.Subject) []string {
	path := s.ConfigFile
	if path == "" {
		path = config.DefaultPath
	}
	return append(bugreport.Secrets(path), e.getenv(benchTokenVariable))
}

// parts returns the parts of the archive.
func (e *env) parts(c *admin.Client, s doctor.Subject) []bugreport.Part {
	var examined doctor.Report // set by the part doctor.json
	list := []bugreport.Part{
		bugreport.Document("version.json", func(ctx context.Context) (report.VersionInfo, error) {
			info := admin.NewVersionInfo(buildVersion())
			info.Daemon = e.daemonVersion(ctx)
			return info, nil
		}),
		bugreport.Document("doctor.json", func(ctx context.Context) (doctor.Report, error) {
			examined = doctor.Examine(ctx, e.host, s)
			return examined, nil
		}),
		{Name: "doctor.txt", Read: func(context.Context) ([]byte, error) {
			var b bytes.Buffer
			err := examined.Text(&b, nil)
			return b.Bytes(), err
		}},
		{Name: "diagnosis.txt", Read: func(ctx context.Context) ([]byte, error) {
			d, err := e.diagnosis(ctx, c, examined, answers(s))
			var b bytes.Buffer
			err = errors.Join(err, d.Text(&b))
			return b.Bytes(), err
		}},
	}
	if s.ConfigFile != "" {
		list = append(list, bugreport.ConfigPart(s.ConfigFile))
	}
	if answers(s) {
		list = append(list, bugreport.DaemonParts(c)...)
	}
	return append(list, bugreport.HostParts()...)
}
