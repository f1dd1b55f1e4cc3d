package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/doctor"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// The exit statuses. They are part of the interface.
const (
	exitOK          = 0
	exitFailed      = 1 // the operation failed
	exitUsage       = 2 // the command line was not understood
	exitUnreachable = 3 // no daemon answers (LSB: not running)
	exitFindings    = 4 // check or doctor found errors, or ping a native connection
	exitDegraded    = 5 // status --strict: the gateway does less than configured
)

// exitError ends the program with a status. Its text may be empty if everything has been printed.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errSaid means that the verb has already printed its error.
var errSaid = errors.New("")

// usagef returns an error for an invalid command line.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// status converts the result of a command to an exit status, and prints the error.
func (e *env) status(c *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	status := exitFailed
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		status = exit.status
	case !e.started: // cobra has rejected the command line
		status = exitUsage
	case errors.Is(err, admin.ErrDaemonUnreachable):
		status = exitUnreachable
	}
	if errors.Is(err, errSaid) { // the status may be that of another program
		return status
	}
	fmt.Fprintln(e.stderr, "smcgw:", err)
	switch status {
	case exitUsage:
		if c.Name() == "help" {
			c = c.Root()
		}
		fmt.Fprintf(e.stderr, "See \"%s --help\".\n", c.CommandPath())
	case exitUnreachable:
		e.nameOthers(err)
	}
	return status
}

// nameOthers names the gateways of this network namespace if there is none at the usual socket, as when admin was
// changed since the start. If there is none at all, it says how to start one.
func (e *env) nameOthers(err error) {
	if e.socket != "" || e.gateways == nil || !admin.Absent(err) {
		return
	}
	found, _ := e.gateways(context.Background()) // what was not found is not named
	named := false
	for _, g := range found {
		if g.Here && g.Socket != "" {
			fmt.Fprintf(e.stderr, "%v: --socket %s asks it\n", g, g.Socket)
			named = true
		}
	}
	if !named {
		fmt.Fprintln(e.stderr, `"systemctl start smcgw" starts it, "journalctl -u smcgw" says why it ended, "smcgw doctor" what it lacks.`)
	}
}

// env is the environment of the verbs, so that all of them can run in tests.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	confine        func() error                                   // drops the privileges of the process
	gateways       func(context.Context) ([]machine.Found, error) // of this machine
	machineOff     admin.OffFlag
	rdma           func() (sysfs.RDMA, error)              // adapters
	host           doctor.Probes                           // what doctor examines
	terminal       func(io.Writer) int                     // columns; 0: it is no terminal; nil: nothing is
	startBroker    func(dir string, socket *os.File) error // starts the broker of a user if there is no daemon

	service  string                // configuration file of the service
	runsAs   func() config.Account // account of the service; nil: not known
	socket   string                // --socket
	json     bool                  // --json
	output   string                // --output
	noHeader bool                  // --no-header
	started  bool                  // the command line was understood
}

// osEnv returns the environment of the process.
func osEnv() *env {
	return &env{
		stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, service: config.DefaultPath, runsAs: serviceAccount,
		terminal: terminalColumns, startBroker: startBroker,
		confine: process.Confine, gateways: machine.Find, machineOff: admin.MachineOff(), rdma: sysfs.Read, host: doctor.This(),
	}
}
