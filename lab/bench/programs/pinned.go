package programs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// pinned becomes another program that may run on one processor only: CPU NAME
// ARG... The threads of that program inherit it, since it has one when it begins.
func pinned(args []string) error {
	if len(args) < 2 {
		return flag.ErrHelp
	}
	cpu, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("processor: %w", err)
	}
	file, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // execve leaves the thread that calls it
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("processor %d: %w", cpu, os.NewSyscallError("sched_setaffinity", err))
	}
	return os.NewSyscallError("execve", unix.Exec(file, args[1:], os.Environ()))
}
