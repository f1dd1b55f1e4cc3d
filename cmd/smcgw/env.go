package main

import (
	"context"
	"io"
	"os"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/doctor"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

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
