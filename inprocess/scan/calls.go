package scan

import "debug/elf"

// Arch is a processor architecture whose system calls the package knows.
type Arch string

// The known architectures.
const (
	X86_64 Arch = "x86-64"
	ARM64  Arch = "arm64"
)

func archOf(m elf.Machine) (Arch, bool) {
	switch m {
	case elf.EM_X86_64:
		return X86_64, true
	case elf.EM_AARCH64:
		return ARM64, true
	default:
		return "", false
	}
}

// call is a system call that counts: it moves bytes of a socket, ends it, waits for it, sets its options, or hands it
// to another process or number. none: the architecture has no such call.
type call struct {
	name       string
	x86, arm64 int32
}

const none = -1

// counted lists them (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h). Calls that only
// create a socket are not among them: the library leaves alone a socket that it has not seen.
func counted() []call {
	return []call{
		{"read", 0, 63},
		{"write", 1, 64},
		{"readv", 19, 65},
		{"writev", 20, 66},
		{"pread64", 17, 67},
		{"pwrite64", 18, 68},
		{"preadv", 295, 69},
		{"pwritev", 296, 70},
		{"preadv2", 327, 286},
		{"pwritev2", 328, 287},
		{"sendto", 44, 206},
		{"recvfrom", 45, 207},
		{"sendmsg", 46, 211},
		{"recvmsg", 47, 212},
		{"sendmmsg", 307, 269},
		{"recvmmsg", 299, 243},
		{"sendfile", 40, 71},
		{"splice", 275, 76},
		{"tee", 276, 77},
		{"vmsplice", 278, 75},
		{"close", 3, 57},
		{"close_range", 436, 436},
		{"shutdown", 48, 210},
		{"dup", 32, 23},
		{"dup2", 33, none},
		{"dup3", 292, 24},
		{"fcntl", 72, 25},
		{"pidfd_getfd", 438, 438},
		{"ioctl", 16, 29},
		{"setsockopt", 54, 208},
		{"getsockopt", 55, 209},
		{"poll", 7, none},
		{"ppoll", 271, 73},
		{"select", 23, none},
		{"pselect6", 270, 72},
		{"epoll_ctl", 233, 21},
		{"epoll_wait", 232, none},
		{"epoll_pwait", 281, 22},
		{"epoll_pwait2", 441, 441},
		{"fork", 57, none},
		{"vfork", 58, none},
		{"clone", 56, 220},
		{"clone3", 435, 435},
		{"execve", 59, 221},
		{"execveat", 322, 281},
		{"io_submit", 209, 2},
		{"io_uring_setup", 425, 425},
		{"io_uring_enter", 426, 426},
		{"io_uring_register", 427, 427},
	}
}

// numbers maps the numbers of an architecture's calls that count to their names.
func numbers(a Arch) map[int64]string {
	m := map[int64]string{}
	for _, c := range counted() {
		n := c.x86
		if a == ARM64 {
			n = c.arm64
		}
		if n != none {
			m[int64(n)] = c.name
		}
	}
	return m
}

func isIOUring(name string) bool {
	return name == "io_uring_setup" || name == "io_uring_enter" || name == "io_uring_register"
}
