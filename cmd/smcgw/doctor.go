package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/bench"
	"github.com/smcgw/smcgw/cmd/smcgw/internal/doctor"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/inprocess/adopt"
	"github.com/smcgw/smcgw/inprocess/scan"
)

// doctorPatience bounds an examination.
const doctorPatience = time.Minute

func newDoctor(e *env) *cobra.Command {
	var configPath, peer, program string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine this host: what a gateway needs and what it lacks",
		Long: `Doctor looks at the kernel, the privileges, the settings and the devices of this host,
at other software that decides about connections, at the configuration, and at the
daemon if one answers. It changes nothing and needs no daemon. As root, and in the
network namespace of the gateway, it sees most.

Every line is ok, a warning (slower, or some connections stay native) or a failure (the
gateway does not work, or carries nothing), with what to do below it. With --peer it
asks whether soft's UDP port of another host is refused; with a port and a daemon it
also opens a connection there, as "smcgw ping" does.

With --program it only tells whether the connections of a program could be promoted if it
were started with libsmcgw, or why they would stay native.

Exit status: 4 if a line is a failure, or the program's connections stay native.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case program != "":
				return e.examineProgram(program)
			case cmd.Flags().Changed("program"):
				return usagef("doctor: --program names no program")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorPatience)
			defer cancel()
			s, err := e.subject(ctx, configPath, peer)
			if err != nil {
				return err
			}
			r := doctor.Examine(ctx, e.host, s)
			if e.json {
				err = e.printJSON(r)
			} else {
				err = printed(r.Text(e.stdout, e.screen(e.stdout).Hang))
			}
			if err == nil && r.Failures > 0 {
				return &exitError{exitFindings, errSaid}
			}
			return err
		},
	}
	addConfigFlag(c, &configPath, "")
	c.Flags().StringVar(&peer, "peer", "", "another host, HOST or HOST:PORT, to be reached")
	c.Flags().StringVar(&program, "program", "", "a program: would its connections be promoted under libsmcgw?")
	c.MarkFlagsMutuallyExclusive("program", "peer")
	c.MarkFlagsMutuallyExclusive("program", "config")
	return withSocket(e, verb(e, c))
}

// examineProgram examines a program, which is looked up in PATH as a shell does.
func (e *env) examineProgram(name string) error {
	file, err := exec.LookPath(name)
	if err != nil {
		file = name // it may not be executable
	}
	if file, err = filepath.Abs(file); err != nil {
		return fmt.Errorf("doctor --program: %w", err)
	}
	loaded, err := scan.Resolve(file)
	if err != nil {
		loaded = file // the scan reports what is wrong with it
	}
	r, err := scan.New().Program(loaded)
	if err != nil {
		return fmt.Errorf("doctor --program: %w", err)
	}
	library := ""
	if own, err := os.Executable(); err == nil && r.Libc != "" {
		library, _ = adopt.Library(r.Libc, e.getenv(adopt.EnvLibrary), own) // a missing library is a valid answer
	}
	p := doctor.ExamineProgram(file, r, library)
	if e.json {
		err = e.printJSON(p)
	} else {
		err = printed(p.Text(e.stdout))
	}
	if err == nil && p.Answer != doctor.Promotable {
		return &exitError{exitFindings, errSaid}
	}
	return err
}

// subject collects what doctor examines besides the host.
func (e *env) subject(ctx context.Context, configPath, peer string) (doctor.Subject, error) {
	s := doctor.Subject{Config: defaultConfig(), Version: buildVersion(), Capabilities: process.Capabilities()}
	e.readConfig(&s, configPath)
	c := e.client(s.Config.Admin)
	defer c.Close()
	var err error
	if s.Daemon, err = askDaemon(ctx, c); err != nil {
		return s, err
	}
	if s.Daemon == nil {
		s.Others = e.gatewaysHere(ctx)
	}
	if peer != "" {
		s.Peer, err = e.peer(ctx, c, peer, s.Daemon != nil && s.Daemon.Problem == "")
	}
	return s, err
}

// gatewaysHere lists the gateways of this network namespace that can be found.
func (e *env) gatewaysHere(ctx context.Context) (names []string) {
	found, _ := e.gateways(ctx) // seeing them needs root
	for _, g := range found {
		if g.Here {
			names = append(names, g.String())
		}
	}
	return names
}

// readConfig reads the named file, or the default one if it exists.
func (e *env) readConfig(s *doctor.Subject, path string) {
	named := path != ""
	if !named {
		path = e.service
	}
	f, err := e.loadForHost(path)
	if !named && errors.Is(err, os.ErrNotExist) {
		return
	}
	s.ConfigFile, s.ConfigError = path, err
	s.Config.Admin = config.AdminIn(path) // even if the file has errors
	if f != nil {
		s.Config, s.ConfigNotes = f.Config, f.Notes()
	}
}

// askDaemon queries the daemon; the result is nil if none answers.
func askDaemon(ctx context.Context, c *admin.Client) (*doctor.Daemon, error) {
	var d doctor.Daemon
	var err error
	if d.Status, err = c.Status(ctx); errors.Is(err, admin.ErrDaemonUnreachable) {
		return nil, nil
	}
	if errors.Is(err, os.ErrPermission) {
		d.Problem = err.Error()
		return &d, nil
	}
	if err != nil {
		return nil, err
	}
	devices, errDevices := c.Devices(ctx)
	peers, errPeers := c.Peers(ctx)
	pid, errPID := c.DaemonPID(ctx)
	d.Devices, d.Peers, d.PID = devices.Devices, peers.Peers, pid
	return &d, errors.Join(errDevices, errPeers, errPID)
}

// peer examines another host: it connects to the host's port, if one was given and a daemon answers.
func (e *env) peer(ctx context.Context, c *admin.Client, arg string, ask bool) (*doctor.Peer, error) {
	host, port, err := hostPort(arg)
	if err != nil {
		return nil, err
	}
	p := &doctor.Peer{Port: port}
	if p.Address, err = lookUpHost(ctx, host); err != nil {
		return nil, fmt.Errorf("doctor --peer: %w", err)
	}
	if port == 0 || !ask {
		return p, nil
	}
	r, err := bench.Ping(ctx, bench.PingOptions{To: []netip.AddrPort{netip.AddrPortFrom(p.Address, port)}, Count: 1, Gateway: bench.Beside(c)})
	if err != nil {
		return nil, err
	}
	t := r.Tries[0]
	p.Carrier, p.Reason, p.Problem = t.Carrier, t.Reason, t.Error
	return p, nil
}
