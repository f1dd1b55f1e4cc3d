package scan

// Reason is why the connections of a program stay native. Its values appear in output.
type Reason string

// The reasons.
const (
	// NotELF: the file is neither a Linux program nor a library.
	NotELF Reason = "not_elf"
	// Malformed: its tables point outside of the file, or contradict each other.
	Malformed Reason = "malformed"
	// OtherArch: it is for neither x86-64 nor arm64, or not for this machine.
	OtherArch Reason = "other_arch"
	// Static: it has no loader, so nothing can be preloaded.
	Static Reason = "static"
	// OtherLibc: its loader is neither glibc's nor musl's.
	OtherLibc Reason = "other_libc"
	// Setuid: it gains privileges from its file, and the loader ignores LD_PRELOAD.
	Setuid Reason = "setuid"
	// GoRuntime: Go's runtime makes its system calls itself.
	GoRuntime Reason = "go_runtime"
	// RawCalls: it has instructions outside of libc that may move bytes of a socket, or hand it over.
	RawCalls Reason = "raw_calls"
	// IOUring: the kernel reads and writes on its own, without a call.
	IOUring Reason = "io_uring"
	// Missing: a library that it names was not found.
	Missing Reason = "missing_library"
	// Unreadable: a mapped file cannot be read, or there is too much of it.
	Unreadable Reason = "unreadable"
)

// Meaning explains the reason in one sentence without a full stop.
func (r Reason) Meaning() string {
	switch r {
	case NotELF:
		return "it is no program that the loader of libc starts"
	case Malformed:
		return "its ELF tables contradict each other"
	case OtherArch:
		return "it is built for another processor than the library"
	case Static:
		return "it is linked statically, so no library can be loaded before it"
	case OtherLibc:
		return "its loader is neither glibc's nor musl's"
	case Setuid:
		return "its file gives it rights (set-user-ID, set-group-ID or capabilities), and the loader then ignores LD_PRELOAD"
	case GoRuntime:
		return "the runtime of Go makes its system calls past libc"
	case RawCalls:
		return "it has system call instructions outside of libc that may touch a socket"
	case IOUring:
		return "it uses io_uring, by which the kernel reads and writes sockets past libc"
	case Missing:
		return "a library that it names is not found here, so it does not start as it is"
	case Unreadable:
		return "a part of its code could not be read"
	default:
		return string(r)
	}
}
