package e2e

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// sandboxEnv names the environment variable that makes this program install a filter that allows the system calls
// whose numbers are in the named file, and execute its arguments.
const sandboxEnv = "SMCGW_TEST_SANDBOX"

// becomeSandboxed returns only with an error, or if sandboxEnv is not set.
func becomeSandboxed() error {
	path := os.Getenv(sandboxEnv)
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var allowed []uint32
	for f := range strings.FieldsSeq(string(text)) {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return err
		}
		allowed = append(allowed, uint32(n))
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0); err != nil {
		return fmt.Errorf("no memory both writable and executable: %w", err)
	}
	if err := installFilter(filter(allowed)); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return unix.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// Actions and offsets of seccomp(2).
const (
	seccompAllow = 0x7fff0000
	seccompKill  = 0x80000000 // kills the process
	seccompErrno = 0x00050000
	offNumber    = 0
	offArgument  = 16
)

// filter allows these calls, but no entering of namespaces, only new user and network namespaces, and only sockets of
// the unit's families. Anything else kills the process.
func filter(allowed []uint32) []bpf.Instruction {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 7},
		bpf.LoadAbsolute{Off: offArgument, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipTrue: 1},
		bpf.RetConstant{Val: seccompErrno | uint32(unix.EAFNOSUPPORT)},
		bpf.RetConstant{Val: seccompAllow},
	}
	for _, call := range []uint32{unix.SYS_SETNS, unix.SYS_UNSHARE} {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, bpf.RetConstant{Val: seccompKill})
	}
	const otherNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID
	prog = append(prog,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offArgument, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: otherNamespaces, SkipTrue: 1},
		bpf.RetConstant{Val: seccompKill},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	)
	// The gateway makes this call where it may, and can do without it.
	prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_PIDFD_GETFD, SkipTrue: 1}, bpf.RetConstant{Val: seccompErrno | uint32(unix.EPERM)})
	for _, call := range allowed {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, bpf.RetConstant{Val: seccompAllow})
	}
	return append(prog, bpf.RetConstant{Val: seccompKill})
}

func installFilter(prog []bpf.Instruction) error {
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return err
	}
	list := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		list[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	p := unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&p)), 0, 0)
}
