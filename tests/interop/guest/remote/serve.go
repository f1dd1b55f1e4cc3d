package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Serve accepts connections and runs a program for each until the listener is closed.
func Serve(ln net.Listener) error {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		go serve(conn)
	}
}

func serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	kind, b, err := readFrame(conn)
	var c Command
	if err != nil || kind != kindCommand || json.Unmarshal(b, &c) != nil || len(c.Args) == 0 {
		return
	}
	out := &frameWriter{w: conn}
	_ = out.writeJSON(kindExit, run(conn, out, c))
}

// run runs the program in a process group of its own.
func run(conn net.Conn, out *frameWriter, c Command) Exit {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second // for descendants that hold the pipe
	if err := cmd.Start(); err != nil {
		return Exit{Code: -1, Reason: err.Error()}
	}
	go killWithConn(conn, cmd.Process.Pid)
	err := cmd.Wait()
	// Kill what it has started; the group is usually empty.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return Exit{}
	case errors.As(err, &exit) && exit.Exited():
		return Exit{Code: exit.ExitCode()}
	default:
		return Exit{Code: -1, Reason: fmt.Sprint(err)}
	}
}

// killWithConn kills the process group when the connection ends: because the other side ends it, or this side does
// once the program has ended. The group's number cannot be another group's by then: the wait for the leader is over
// no earlier, and numbers are recycled late.
func killWithConn(conn net.Conn, pid int) {
	var b [1]byte
	_, _ = conn.Read(b[:])
	_ = syscall.Kill(-pid, syscall.SIGKILL)
}
