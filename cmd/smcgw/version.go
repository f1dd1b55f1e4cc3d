package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// release is the version of this tree. The Makefile reads it, and it is part of the packages' names.
const release = "0.1.0"

// version is set at link time to override release.
var version string

// buildVersion returns the version of this program.
func buildVersion() string { return cmp.Or(version, release) }

// versionPatience is how long the daemon may take to report its version.
const versionPatience = time.Second

func newVersion(e *env) *cobra.Command {
	return withSocket(e, noun(e, &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and of the daemon, if one runs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := admin.NewVersionInfo(buildVersion())
			info.Daemon = e.daemonVersion(cmd.Context())
			if info.Daemon != "" && info.Daemon != info.Version {
				fmt.Fprintf(e.stderr, "smcgw: this is %s, the daemon is %s\n", info.Version, info.Daemon)
			}
			if e.json {
				return e.printJSON(info)
			}
			_, err := fmt.Fprint(e.stdout, versionText(info))
			return printed(err)
		},
	}))
}

// daemonVersion returns the daemon's version, or "" if none answers.
func (e *env) daemonVersion(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	c := e.reach()
	defer c.Close()
	info, err := c.Version(ctx)
	if err != nil {
		return ""
	}
	return info.Version
}

func versionText(v report.VersionInfo) string {
	text := fmt.Sprintf("smcgw %s\n%s %s/%s, kernel %s\n", v.Version, v.Go, v.OS, v.Arch, v.Kernel)
	if v.Daemon != "" {
		text += "daemon " + v.Daemon + "\n"
	}
	return text
}
