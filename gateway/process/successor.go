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

// SuccessorVerb is the argument with which the program starts a gateway that takes over,
// and has to call StartDetached with what follows.
const SuccessorVerb = "succeed"

// Program is the file of this process's program, and the arguments of a gateway that is
// to take over from the one in this process.
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

// Replaced reports whether the file is another one than this process runs.
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

// Successor is a gateway that takes over, while it depends on this process.
type Successor struct {
	lifeline io.WriteCloser // the other end's helper ends with it, and leaves the gateway alone
	ended    chan error
}

var errSuccessorEnded = errors.New("the new gateway has ended; its log says why")

// errContainer and errNoNamespace mean that no gateway can take over from this one: a
// container ends with its first process, and the right to make a namespace is given up
// after a start (Confine).
var (
	errContainer   = errors.New("this gateway is the first process of its container, which ends with it: no other one can take over; restart the container, which resets what is carried")
	errNoNamespace = errors.New("this host has no network namespace for another gateway, and none can take over; a restart (systemctl restart smcgw) resets what is carried")
)

// noNamespace is the status with which the helper tells errNoNamespace.
const noNamespace = 77

// CanSucceed tells why no gateway that this process starts could take over from it.
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

// Start starts the file as it is now, as a gateway that takes over. A helper between
// both makes it a child of the first process of the system, which hears of its end,
// as soon as it is released. It has what this process has: descriptors of the log,
// environment, namespaces and control group.
func (p Program) Start() (*Successor, error) {
	cmd := exec.Command(p.Path, append([]string{SuccessorVerb}, p.Args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start successor: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start successor: %w", err), lifeline.Close())
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

// Ended tells that the successor has ended before it was released.
func (s *Successor) Ended() <-chan error { return s.ended }

// Release leaves the successor alone.
func (s *Successor) Release() { _ = s.lifeline.Close() }

// End has the successor end: its helper tells it so.
func (s *Successor) End() {
	_, _ = s.lifeline.Write([]byte{endIt}) // a helper that has ended has nothing to end
	_ = s.lifeline.Close()
}

// endIt is what a helper reads that is to end its gateway.
const endIt = 'e'

// RequireNamespace ends the helper where the gateway that it is to start gets no network
// namespace. The helper asks, not the daemon: a process that asks is copied, with the memory
// that adapters have pinned.
func RequireNamespace() {
	if err := legs.Possible(); err != nil {
		fmt.Fprintln(os.Stderr, errNoNamespace, err)
		os.Exit(noNamespace)
	}
}

// StartDetached is the helper: it starts this program with other arguments, and returns
// when that has ended, which is an error, or when the end of lifeline says that it is
// to be left alone. What comes before the end says that it is to end.
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
