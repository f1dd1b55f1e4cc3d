package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// SuccessorVerb is the argument with which the program starts a gateway that takes over; it
// must then call StartDetached with the arguments that follow.
const SuccessorVerb = "succeed"

// Program is the file of this process's program, and the arguments for a gateway that takes
// over from the one in this process.
type Program struct {
	Path string
	Args []string
}

// OwnProgram finds the file that this process was started from.
func OwnProgram(args ...string) (Program, error) {
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return Program{}, fmt.Errorf("own program: %w", err)
	}
	return Program{Path: path, Args: args}, nil
}

// Replaced reports whether the installed file is not the one that this process runs.
func (p Program) Replaced() (bool, error) {
	installed, err := os.Stat(p.Path)
	if err != nil {
		return false, fmt.Errorf("installed program: %w", err)
	}
	running, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false, fmt.Errorf("running program: %w", err)
	}
	return !os.SameFile(installed, running), nil
}

// Successor is a gateway that is taking over, while it depends on this process.
type Successor struct {
	lifeline io.WriteCloser // closing it makes the helper exit and leave the gateway running
	ended    chan error
}

var errSuccessorEnded = errors.New("the new gateway has ended; its log says why")

// errContainer and errNoNamespace mean that no gateway can take over from this one: a
// container ends with its first process, and the right to create a namespace is given up
// after the start (Confine).
var (
	errContainer   = errors.New("this gateway is the first process of its container, which ends with it: no other one can take over; restart the container, which resets what is carried")
	errNoNamespace = errors.New("this host has no network namespace for another gateway, and none can take over; a restart (systemctl restart smcgw) resets what is carried")
)

// noNamespace is the exit status with which the helper reports errNoNamespace.
const noNamespace = 77

// CanSucceed returns why no gateway started by this process could take over from it.
func CanSucceed() error {
	first := os.Getpid()
	if first != 1 {
		name, _ := os.ReadFile("/proc/1/comm")
		if strings.HasPrefix(string(name), "smcgw") {
			first = os.Getppid() // the guardian
		}
	}
	if first == 1 {
		return errContainer
	}
	return nil
}

// Start starts the installed file as a gateway that takes over. A helper between the two
// makes it a child of the system's init process once it is released. It inherits from this
// process the descriptors of the log, the environment, the namespaces and the control group.
func (p Program) Start() (*Successor, error) {
	cmd := exec.Command(p.Path, append([]string{SuccessorVerb}, p.Args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start successor: %w", err)
	}
	if err := cmd.Start(); err != nil { // it has closed the pipe
		return nil, fmt.Errorf("start successor: %w", err)
	}
	s := &Successor{lifeline: lifeline, ended: make(chan error, 1)}
	go func() {
		_ = cmd.Wait()
		if cmd.ProcessState.ExitCode() == noNamespace {
			s.ended <- errNoNamespace
			return
		}
		s.ended <- errSuccessorEnded
	}()
	return s, nil
}

// Ended receives an error if the successor ends before it was released.
func (s *Successor) Ended() <-chan error { return s.ended }

// Release lets the successor run on its own.
func (s *Successor) Release() { _ = s.lifeline.Close() }

// End makes the successor end, through its helper.
func (s *Successor) End() {
	_, _ = s.lifeline.Write([]byte{endIt}) // a helper that has exited has nothing to end
	_ = s.lifeline.Close()
}

// endIt tells a helper to end its gateway.
const endIt = 'e'

// RequireNamespace exits the helper if the gateway that it is to start would get no network
// namespace. The helper checks, not the daemon: checking forks the process, and that would
// copy the memory that adapters have pinned.
func RequireNamespace() {
	if err := legs.Possible(); err != nil {
		fmt.Fprintln(os.Stderr, errNoNamespace, err)
		os.Exit(noNamespace)
	}
}

// StartDetached runs the helper: it starts this program with other arguments. It returns an
// error when that program has ended, and nil when lifeline ends, which means to leave it
// running. Any data on lifeline before its end means to end the program.
func StartDetached(args []string, lifeline io.Reader) error {
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...),
		Stdout: os.Stdout, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start successor: %w", err)
	}
	ended, told := make(chan error, 1), make(chan int64, 1)
	go func() { ended <- cmd.Wait() }()
	go func() {
		n, _ := io.Copy(io.Discard, lifeline)
		told <- n
	}()
	select {
	case err := <-ended:
		return errors.Join(errSuccessorEnded, err)
	case n := <-told:
		if n == 0 {
			return nil
		}
	}
	err := cmd.Process.Signal(syscall.SIGTERM) // which its guardian passes on
	select {
	case status := <-ended:
		return errors.Join(errSuccessorLate, err, status)
	case <-time.After(endPatience):
		return errors.Join(errSuccessorLate, err)
	}
}

var errSuccessorLate = errors.New("the new gateway has not taken over, and is told to end")
