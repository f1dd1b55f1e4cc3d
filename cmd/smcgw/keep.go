package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/inprocess/private"
	"github.com/smcgw/smcgw/inprocess/scan"
)

// brokerVerb is the hidden verb of a user's broker, and brokerSocket the descriptor of its socket.
const (
	brokerVerb   = "keep-broker"
	brokerSocket = 3
)

// newKeepBroker is the process that run starts if there is no daemon.
func newKeepBroker(e *env) *cobra.Command {
	return &cobra.Command{
		Use:    brokerVerb + " DIR",
		Short:  "Bring the in-process connections of one user together (started by run)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			closeInherited()
			socket := os.NewFile(brokerSocket, "socket")
			defer func() { _ = socket.Close() }()
			return private.Serve(c.Context(), args[0], socket, private.Options{Programs: scan.New(), Off: e.machineOff.IsSet, Log: slog.New(slog.NewTextHandler(e.stderr, nil))})
		},
	}
}

// closeInherited closes what run inherited from its own caller, such as a pipe or a lock whose release that caller may
// wait for. Descriptors of this process are close-on-exec.
func closeInherited() {
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= brokerSocket {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// startBroker starts the broker process, which outlives this one: it has its own session and keeps only the socket of
// ours.
func startBroker(dir string, socket *os.File) error {
	c := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{os.Args[0], brokerVerb, dir}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{socket}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%s: %w", brokerVerb, err)
	}
	go func() { _ = c.Wait() }() // reaps it if it ends before this process; otherwise init does
	return nil
}

// newKeepLegs is the process that up starts in the namespace of the legs.
func newKeepLegs(*env) *cobra.Command {
	return &cobra.Command{
		Use:    process.LegsVerb,
		Short:  "Make sockets in the gateway's own network namespace (started by up)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return process.KeepLegs() },
	}
}

// newSpareLegs is the process that replaces that one when it dies.
func newSpareLegs(*env) *cobra.Command {
	return &cobra.Command{
		Use:    process.SpareVerb,
		Short:  "Wait for the end of keep-legs, and take its place (started by keep-legs)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return process.SpareLegs() },
	}
}
