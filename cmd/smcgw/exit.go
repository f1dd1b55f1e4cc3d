package main

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/gateway/admin"
)

// The exit statuses. They are part of the interface.
const (
	exitOK          = 0
	exitFailed      = 1 // the operation failed
	exitUsage       = 2 // the command line was not understood
	exitUnreachable = 3 // no daemon answers (LSB: not running)
	exitFindings    = 4 // check or doctor found errors, ping a native connection
	exitDegraded    = 5 // status --strict: less is done than was asked for
)

// exitError ends the program with a status. Its text may be empty when all has
// been said.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errSaid stands for what a verb has printed itself.
var errSaid = errors.New("")

// usagef reports a command line that makes no sense.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// status turns the outcome of a verb into an exit status and says what went
// wrong.
func (e *env) status(err error) int {
	if err == nil {
		return exitOK
	}
	status := exitFailed
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		status = exit.status
	case !e.started: // the library has refused it
		status = exitUsage
	case errors.Is(err, admin.ErrDaemonUnreachable):
		status = exitUnreachable
	}
	if errors.Is(err, errSaid) { // the status may be that of another program
		return status
	}
	fmt.Fprintln(e.stderr, "smcgw:", err)
	if status == exitUsage {
		fmt.Fprintln(e.stderr, `See "smcgw --help".`)
	}
	return status
}
