package scan

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// native skips where the programs that the test builds are of a processor without the
// instructions that it has written down.
func native(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("assembly of x86-64")
	}
	testnet.Require(t, "gcc")
}

// build compiles C.
func build(t *testing.T, compiler, text string, flags ...string) string {
	testnet.Require(t, compiler)
	dir := t.TempDir()
	source, program := filepath.Join(dir, "x.c"), filepath.Join(dir, "x")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	out, err := exec.Command(compiler, append([]string{"-O2", "-o", program, source}, flags...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

const (
	plain = `#include <unistd.h>
int main(void) { char c; return read(0, &c, 1) != 1; }`
	raw = `#include <unistd.h>
__attribute__((noinline)) long raw_read(int fd, void *p, long n) {
	long r; __asm__ volatile("syscall" : "=a"(r) : "0"(0L), "D"(fd), "S"(p), "d"(n) : "rcx", "r11", "memory"); return r; }
int main(void) { char c; return raw_read(0, &c, 1) != 1; }`
	unknown = `__attribute__((noinline)) long any(long n, long a, long b, long c) {
	long r; __asm__ volatile("syscall" : "=a"(r) : "0"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory"); return r; }
int main(int argc, char **argv) { return any(argc, 0, 0, 0); }`
	harmless = `#include <stdio.h>
int main(void) { char c[8]; long r;
	__asm__ volatile("syscall" : "=a"(r) : "0"(318L), "D"(c), "S"(8L), "d"(0L) : "rcx", "r11", "memory"); return printf("%ld\n", r) < 0; }`
	uring = `int main(void) { long r; char p[120] = {0};
	__asm__ volatile("syscall" : "=a"(r) : "0"(425L), "D"(8L), "S"(p) : "rcx", "r11", "memory"); return r < 0; }`
)

func program(t *testing.T, file string) *Result {
	r, err := New().Program(file)
	require.NoError(t, err)
	return r
}

func TestProgram(t *testing.T) {
	native(t)
	for _, c := range []struct {
		name, compiler, text string
		flags                []string
		reasons              []Reason
		libc                 Libc
		call                 string
		entries              int
	}{
		{name: "plain", text: plain, libc: Glibc},
		{name: "plain, not PIE", text: plain, flags: []string{"-no-pie"}, libc: Glibc},
		{name: "raw", text: raw, libc: Glibc, reasons: []Reason{RawCalls}, call: "read", entries: 1},
		{name: "raw, of any number", text: unknown, libc: Glibc, reasons: []Reason{RawCalls}, entries: 1},
		{name: "raw, without unwind tables", text: raw, flags: []string{"-fno-asynchronous-unwind-tables"}, libc: Glibc, reasons: []Reason{RawCalls}, entries: 1, call: "read"},
		{name: "raw, stripped", text: raw, flags: []string{"-s", "-fno-asynchronous-unwind-tables"}, libc: Glibc, reasons: []Reason{RawCalls}, entries: 1},
		{name: "harmless", text: harmless, libc: Glibc, entries: 1},
		{name: "static", text: plain, flags: []string{"-static"}, reasons: []Reason{Static, RawCalls}},
		{name: "static PIE", text: plain, flags: []string{"-static-pie"}, reasons: []Reason{Static, RawCalls}},
		{name: "io_uring", text: uring, libc: Glibc, reasons: []Reason{IOUring}, call: "io_uring_setup", entries: 1},
		{name: "another libc", text: plain, flags: []string{"-Wl,--dynamic-linker=/lib/ld-other.so.1"}, reasons: []Reason{OtherLibc}},
		{name: "musl", compiler: "musl-gcc", text: plain, libc: Musl},
		{name: "raw, musl", compiler: "musl-gcc", text: raw, libc: Musl, reasons: []Reason{RawCalls}, call: "read", entries: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.compiler == "" {
				c.compiler = "gcc"
			}
			file := build(t, c.compiler, c.text, c.flags...)
			r := program(t, file)
			require.Equal(t, append([]Reason{}, c.reasons...), r.Reasons)
			require.Equal(t, c.libc, r.Libc)
			require.Equal(t, X86_64, r.Arch)
			require.Equal(t, len(c.reasons) == 0, r.Promotable())
			if c.reasons != nil && c.reasons[0] != Static && c.reasons[0] != OtherLibc {
				require.Equal(t, file, r.Objects[0].Path)
				require.Equal(t, c.entries, r.Objects[0].Entries)
				site := r.Objects[0].Sites[0]
				require.Equal(t, c.call, site.Call)
				b, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, []byte{0x0f, 0x05}, b[site.Offset:site.Offset+2])
				if c.name == "raw" {
					require.Equal(t, "raw_read", site.Symbol)
					require.Zero(t, *site.Number)
				}
			}
			f, err := os.Open(file)
			require.NoError(t, err)
			defer f.Close()
			st, err := f.Stat()
			require.NoError(t, err)
			if c.entries > 0 {
				require.Equal(t, c.entries, readObject(f, st.Size(), false, newBudget()).found.Entries)
			}
		})
	}
}

// TestProgramARM64: the same for arm64, by the cross compiler.
func TestProgramARM64(t *testing.T) {
	svc := func(number string) string {
		return fmt.Sprintf(`long call(long a, long b, long c) {
	register long x8 __asm__("x8") = %s; register long x0 __asm__("x0") = a; register long x1 __asm__("x1") = b; register long x2 __asm__("x2") = c;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory"); return x0; }
int main(int argc, char **argv) { return call(argc, 0, 0); }`, number)
	}
	for _, c := range []struct {
		name, text string
		reasons    []Reason
		call       string
	}{
		{"plain", plain, nil, ""},
		{"read", svc("63"), []Reason{RawCalls}, "read"},
		{"any", svc("a"), []Reason{RawCalls}, ""},
		{"harmless", svc("278"), nil, ""},
		{"io_uring", svc("426"), []Reason{IOUring}, "io_uring_enter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := os.Open(build(t, "aarch64-linux-gnu-gcc", c.text))
			require.NoError(t, err)
			defer f.Close()
			st, err := f.Stat()
			require.NoError(t, err)
			ob := readObject(f, st.Size(), false, newBudget())
			require.Equal(t, ARM64, ob.arch)
			require.Equal(t, c.reasons, ob.found.Reasons)
			if c.text != plain {
				require.Positive(t, ob.found.Entries)
			}
			if c.reasons != nil {
				require.Equal(t, c.call, ob.found.Sites[0].Call)
				require.NotEmpty(t, ob.found.Sites[0].Symbol)
			}
			if runtime.GOARCH != "arm64" {
				require.Contains(t, program(t, f.Name()).Reasons, OtherArch)
			}
		})
	}
}

func TestGo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module x\ngo 1.20\n", "pure/x.go": "package main\nfunc main() {}\n",
		"cgo/x.go": "package main\n// #include <unistd.h>\nimport \"C\"\nfunc main() { C.getpid() }\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for name, want := range map[string][]Reason{"pure": {Static, GoRuntime}, "cgo": {GoRuntime}} {
		if _, err := exec.LookPath("gcc"); err != nil && name == "cgo" {
			continue
		}
		c := exec.Command("go", "build", "-ldflags=-s -w", "-o", name+".out", "./"+name)
		c.Dir, c.Env = dir, append(os.Environ(), "CGO_ENABLED="+map[string]string{"pure": "0", "cgo": "1"}[name])
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want, program(t, filepath.Join(dir, name+".out")).Reasons, name)
	}
}

func TestSetuid(t *testing.T) {
	native(t)
	file := build(t, "gcc", plain)
	require.True(t, program(t, file).Promotable())
	for _, mode := range []os.FileMode{os.ModeSetuid, os.ModeSetgid} {
		require.NoError(t, os.Chmod(file, 0o755|mode))
		require.Equal(t, []Reason{Setuid}, program(t, file).Reasons)
	}
	require.NoError(t, os.Chmod(file, 0o755))
	// struct vfs_cap_data, version 2: CAP_NET_BIND_SERVICE.
	caps := []byte{0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(file, "security.capability", caps, 0); err != nil {
		t.Skip("file capabilities: ", err)
	}
	require.Equal(t, []Reason{Setuid}, program(t, file).Reasons)
}

// TestLibraries: a library that the program names counts as the program does, and so does
// one that a library names.
func TestLibraries(t *testing.T) {
	native(t)
	dir := t.TempDir()
	compile := func(name, text string, flags ...string) {
		source := filepath.Join(dir, name+".c")
		require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
		out, err := exec.Command("gcc", append([]string{"-O2", "-o", filepath.Join(dir, name), source, "-L" + dir, "-Wl,--no-as-needed"}, flags...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	compile("libraw.so", strings.Replace(raw, "main", "raw_main", 1), "-shared", "-fPIC")
	compile("libmiddle.so", "int middle;", "-shared", "-fPIC", "-lraw", "-Wl,-rpath,$ORIGIN")
	compile("program", plain, "-lmiddle", "-Wl,-rpath,$ORIGIN", "-Wl,-rpath-link,"+dir)
	compile("lost", plain, "-lmiddle", "-Wl,-rpath-link,"+dir)
	r := program(t, filepath.Join(dir, "program"))
	require.Equal(t, []Reason{RawCalls}, r.Reasons)
	require.Equal(t, filepath.Join(dir, "libraw.so"), r.Objects[0].Path)
	require.Equal(t, 3, r.Scanned)
	r = program(t, filepath.Join(dir, "lost"))
	require.Equal(t, []Reason{Missing}, r.Reasons)
	require.Equal(t, []string{"libmiddle.so"}, r.Missing)
}

func TestNotPrograms(t *testing.T) {
	dir := t.TempDir()
	_, err := New().Program(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = New().Program(dir)
	require.ErrorIs(t, err, unix.EINVAL)
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	_, err = New().Program(fifo)
	require.ErrorIs(t, err, unix.EINVAL)
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hello"), 0o600))
	require.Equal(t, []Reason{NotELF}, program(t, text).Reasons)
}

// running looks at a process of a program.
func running(t *testing.T, file string, args ...string) *Result {
	t.Helper()
	r, err := New().Process(start(t, file, args...))
	require.NoError(t, err)
	return r
}

// start starts a program, which writes a byte when it has come so far and ends with its input.
func start(t *testing.T, file string, args ...string) (pid int) {
	t.Helper()
	p := exec.Command(file, args...)
	stdin, err := p.StdinPipe()
	require.NoError(t, err)
	stdout, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, p.Wait())
	})
	_, err = io.ReadFull(stdout, make([]byte, 1))
	require.NoError(t, err)
	return p.Process.Pid
}

// loads loads the libraries that are its arguments.
const loads = `#include <dlfcn.h>
#include <unistd.h>
int main(int argc, char **argv) { char c; for (int i = 1; i < argc; i++) if (!dlopen(argv[i], RTLD_NOW)) return 3; write(1, "x", 1); read(0, &c, 1); return 0; }`

// asService calls f in a thread with what the daemon has as a service: another user's, and CAP_SYS_PTRACE.
func asService(t *testing.T, f func()) {
	if os.Geteuid() != 0 { // one of a user's own
		f()
		return
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		err := unix.Capget(&head, &has[0])
		has[0].Effective, has[1].Effective = has[0].Effective&(1<<unix.CAP_SYS_PTRACE), 0
		if err = errors.Join(err, unix.Setfsuid(65534), unix.Capset(&head, &has[0])); err == nil {
			f()
		}
		done <- err
	}()
	require.NoError(t, <-done)
}

// TestReplaced: a file that was replaced while a process has it mapped is examined as mapped, also by a service that
// may open neither its map_files nor its mem, and once.
func TestReplaced(t *testing.T) {
	native(t)
	program := build(t, "gcc", loads)
	library := func(text string) string {
		return build(t, "gcc", strings.Replace(text, "main", "its_main", 1), "-shared", "-fPIC")
	}
	own := filepath.Join(t.TempDir(), "libsmcgw.so")
	require.NoError(t, os.Rename(library(raw), own))
	for _, c := range []struct {
		name, library string
		reasons       []Reason
	}{
		{"clean", library(plain), []Reason{}},
		{"raw", library(raw), []Reason{RawCalls}},
		{"harmless", library(harmless), []Reason{}},
		{"our own", own, []Reason{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pid := start(t, program, c.library)
			require.NoError(t, os.WriteFile(c.library+".new", []byte("another file"), 0o600))
			require.NoError(t, os.Rename(c.library+".new", c.library))
			s := New()
			var r *Result
			var err error
			look := func() { r, err = s.Process(pid) }
			asService(t, look)
			require.NoError(t, err)
			require.Equal(t, c.reasons, r.Reasons, "%+v", r)
			files := s.recent.Len()
			asService(t, look)
			require.Equal(t, c.reasons, r.Reasons, "%+v", r)
			require.Equal(t, files, s.recent.Len())
		})
	}
}

// TestProcess: what a process has mapped counts, also a library that it has loaded itself.
func TestProcess(t *testing.T) {
	native(t)
	library := build(t, "gcc", strings.Replace(raw, "main", "raw_main", 1), "-shared", "-fPIC")
	loads := build(t, "gcc", loads)
	for _, c := range []struct {
		args    []string
		reasons []Reason
	}{{nil, []Reason{}}, {[]string{library}, []Reason{RawCalls}}} {
		r := running(t, loads, c.args...)
		require.Equal(t, c.reasons, r.Reasons, "%+v", r)
		require.Equal(t, Glibc, r.Libc)
		require.Equal(t, loads, r.Program)
		if len(c.reasons) > 0 {
			require.Equal(t, library, r.Objects[0].Path)
			require.Equal(t, "read", r.Objects[0].Sites[0].Call)
		}
	}
	// This test is a program of Go.
	r, err := New().Process(os.Getpid())
	require.NoError(t, err)
	require.Contains(t, r.Reasons, GoRuntime)
	_, err = New().Process(1 << 22)
	require.Error(t, err)
}

// TestProcessWithoutMain: the first thread of a process may have ended, and its entries of /proc are empty then.
func TestProcessWithoutMain(t *testing.T) {
	native(t)
	file := build(t, "gcc", `#include <pthread.h>
#include <unistd.h>
static void *rest(void *main) { char c; pthread_join(*(pthread_t *)main, 0); write(1, "x", 1); read(0, &c, 1); _exit(0); }
static pthread_t self;
int main(void) { pthread_t t; self = pthread_self(); pthread_create(&t, 0, rest, &self); pthread_exit(0); }`)
	r := running(t, file)
	require.Empty(t, r.Reasons, "%+v", r)
	require.Equal(t, file, r.Program)
}

// TestCache: a file is read once while it stays as it is, and the cache stays small.
func TestCache(t *testing.T) {
	native(t)
	file, other := build(t, "gcc", plain), build(t, "gcc", raw)
	s := New()
	for range 3 {
		r, err := s.Program(file)
		require.NoError(t, err)
		require.True(t, r.Promotable())
	}
	require.Equal(t, 1, s.recent.Len())
	b, err := os.ReadFile(other)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, b, 0o700))
	r, err := s.Program(file)
	require.NoError(t, err)
	require.Equal(t, []Reason{RawCalls}, r.Reasons)
	require.Equal(t, 2, s.recent.Len())
	dir := t.TempDir()
	for i := range cached + 9 {
		name := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(name, []byte{byte(i)}, 0o600))
		_, err := s.Program(name)
		require.NoError(t, err)
		require.Len(t, s.byKey, s.recent.Len())
		require.LessOrEqual(t, s.recent.Len(), cached)
	}
}

// TestKnownPrograms: well-known servers and clients can be promoted; -v prints what is found
// of others, too.
func TestKnownPrograms(t *testing.T) {
	s := New()
	found := 0
	for _, p := range []struct {
		name  string
		clean bool
	}{
		{"/usr/bin/redis-server", true},
		{"/usr/sbin/nginx", true},
		{"/usr/bin/iperf3", true},
		{"/usr/bin/wrk", true},
		{"/usr/bin/memcached", true},
		{"/usr/sbin/haproxy", true},
		{"/usr/bin/curl", true},
		{"/usr/sbin/sshd", false},
		{"/usr/bin/ssh", false},
		{"/usr/bin/python3", false},
		{"/usr/bin/node", false},
		{"/usr/bin/sockperf", false},
		{"/usr/lib/postgresql/15/bin/postgres", false},
		{"/usr/sbin/apache2", false},
		{"/usr/bin/podman", false},
		{"/usr/bin/qemu-system-x86_64", false},
		{"/usr/lib/chromium/chromium", false},
	} {
		begin := time.Now()
		r, err := s.Program(p.name)
		if os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		places := ""
		for _, o := range r.Objects {
			places += fmt.Sprintf(" %s:%d", filepath.Base(o.Path), o.Counted)
		}
		t.Logf("%-38s %3d files %4d ms  %v%s", p.name, r.Scanned, time.Since(begin).Milliseconds(), r.Reasons, places)
		if p.clean && r.Arch == s.arch {
			found++
			require.True(t, r.Promotable(), p.name)
		}
	}
	if found == 0 {
		t.Skip("none of the programs is here")
	}
}

// tiny is an ELF file with a loader and some code, and the other segments.
func tiny(machine elf.Machine, code []byte, more ...elf.Prog64) []byte {
	const head, each = 64, 56
	interpreter := []byte("/lib64/ld-linux-x86-64.so.2\x00")
	progs := append([]elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: 0x400000},
		{Type: uint32(elf.PT_INTERP), Filesz: uint64(len(interpreter))},
	}, more...)
	end := uint64(head + each*len(progs))
	progs[1].Off, progs[1].Vaddr = end, 0x400000+end
	end += uint64(len(interpreter)) + 3
	end &^= 3
	progs[0].Filesz = end + uint64(len(code))
	progs[0].Memsz = progs[0].Filesz
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Phoff: head, Ehsize: head, Phentsize: each, Phnum: uint16(len(progs))}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	var b bytes.Buffer
	for _, v := range []any{h, progs, interpreter, make([]byte, -len(interpreter)&3), code} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

func TestTiny(t *testing.T) {
	read := func(b []byte) *object { return readObject(bytes.NewReader(b), int64(len(b)), false, newBudget()) }
	b := tiny(elf.EM_X86_64, []byte("\xb8\x00\x00\x00\x00\x0f\x05\xc3"))
	require.Equal(t, []Reason{RawCalls}, read(b).found.Reasons)
	require.Empty(t, read(tiny(elf.EM_X86_64, []byte("\x90\xc3"))).found.Reasons)
	require.Equal(t, []Reason{RawCalls}, read(tiny(elf.EM_AARCH64, []byte{8, 0, 0x80, 0xd2, 1, 0, 0, 0xd4})).found.Reasons)
	require.Equal(t, []Reason{OtherArch}, read(tiny(elf.EM_RISCV, []byte{0x73, 0, 0, 0})).found.Reasons)

	// Instructions at the border of what is read at a time.
	for n := chunk - 200; n < chunk+8; n++ {
		if n > chunk-160 && n < chunk-16 {
			continue // the header takes some of it
		}
		b := tiny(elf.EM_X86_64, append(bytes.Repeat([]byte{0x90}, n), 0x0f, 0x05))
		require.Equal(t, 1, read(b).found.Entries, n)
	}
}

// sparse is a file of zeroes after its first bytes.
type sparse []byte

func (s sparse) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	if at < int64(len(s)) {
		copy(b, s[at:])
	}
	return len(b), nil
}

// What a file's headers say costs no more than they may: sizes whose sum wraps, and code of more files than are examined at
// once. A file whose examination was cut short is not remembered.
func TestBounds(t *testing.T) {
	const huge = 1 << 62
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_X), Vaddr: 1 << 20, Filesz: huge}
	b := tiny(elf.EM_X86_64, []byte("\x90\xc3"), load, load, load, load)
	require.Equal(t, []Reason{Unreadable}, readObject(sparse(b), huge+4096, false, newBudget()).found.Reasons)

	dynamic := elf.Prog64{Type: uint32(elf.PT_DYNAMIC)}
	b = tiny(elf.EM_X86_64, []byte("\x90\xc3"), dynamic, dynamic)
	require.Equal(t, []Reason{Malformed}, readObject(bytes.NewReader(b), int64(len(b)), false, newBudget()).found.Reasons)

	file := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(file, tiny(elf.EM_X86_64, bytes.Repeat([]byte{0x90}, 1<<20)), 0o700))
	s, need := New(), newBudget()
	ob, _, err := s.file(file, &budget{1 << 20})
	require.NoError(t, err)
	require.Equal(t, []Reason{Unreadable}, ob.found.Reasons)
	for range 2 {
		ob, _, err = s.file(file, need)
		require.NoError(t, err)
		require.Empty(t, ob.found.Reasons)
	}
	require.Less(t, uint64(maxWork-need.left), uint64(2<<20), "the second time it is remembered")
}

// TestTruncatedELF: a program that is cut short is never clean.
func TestTruncatedELF(t *testing.T) {
	b := tiny(elf.EM_X86_64, []byte("\x90\xc3\x90\xc3"))
	require.Empty(t, readObject(bytes.NewReader(b), int64(len(b)), false, newBudget()).found.Reasons)
	for n := range b {
		require.NotEmpty(t, readObject(bytes.NewReader(b[:n]), int64(n), false, newBudget()).found.Reasons, n)
		// It was longer when it was opened.
		require.NotEmpty(t, readObject(bytes.NewReader(b[:n]), int64(len(b)), false, newBudget()).found.Reasons, n)
	}
	whole, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	f, err := elf.NewFile(bytes.NewReader(whole))
	require.NoError(t, err)
	var code uint64
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			code = p.Off + p.Filesz
		}
	}
	for n := uint64(0); n < code; n += 97 {
		require.NotEmpty(t, readObject(bytes.NewReader(whole[:n]), int64(n), false, newBudget()).found.Reasons, n)
	}
}

func FuzzELF(f *testing.F) {
	f.Add(tiny(elf.EM_X86_64, []byte("\xb8\x00\x00\x00\x00\x0f\x05\xc3")))
	f.Add(tiny(elf.EM_AARCH64, []byte{8, 0, 0x80, 0xd2, 1, 0, 0, 0xd4}))
	f.Add(tiny(elf.EM_X86_64, []byte("\x0f\x05"), elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Off: 64, Filesz: 100}, elf.Prog64{Type: uint32(elf.PT_GNU_EH_FRAME), Off: 100, Filesz: 50}, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 64, Filesz: 100}))
	if b, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ob := readObject(bytes.NewReader(b), int64(len(b)), false, newBudget())
		require.LessOrEqual(t, len(ob.found.Sites), maxSites)
		require.LessOrEqual(t, len(ob.found.Sites), ob.found.Counted)
		require.LessOrEqual(t, ob.found.Counted, ob.found.Entries)
		if ob.arch == "" {
			require.NotEmpty(t, ob.found.Reasons)
		}
		for _, s := range ob.found.Sites {
			require.Less(t, s.Offset, uint64(len(b)))
		}
	})
}

func TestLibcNames(t *testing.T) {
	for _, name := range []string{"libc.so.6", "/lib/x86_64-linux-gnu/libc-2.31.so", "libpthread.so.0", "libpthread-2.31.so", "ld-linux-x86-64.so.2", "ld-2.31.so", "/lib/ld-musl-x86_64.so.1", "libc.musl-aarch64.so.1", "libc.so", "libsmcgw.so", "/usr/lib/smcgw/libsmcgw-musl.so", "libm.so.6", "libresolv.so.2"} {
		require.True(t, isLibc(name), name)
	}
	for _, name := range []string{"libcrypto.so.3", "libcurl.so.4", "libc++.so.1", "libc", "libuv.so.1", "libc-client.so.2007e", "libmnl.so.0", "/tmp/libc.so.d/program", "libpthread_workqueue.so.0"} {
		require.False(t, isLibc(name), name)
	}
}

func TestLoaderConfig(t *testing.T) {
	dirs, included := parseLoaderConfig("include /etc/ld.so.conf.d/*.conf\n# a comment\n/opt/lib # and one\n/a:/b,/c\nrelative\n")
	require.Equal(t, []string{"/opt/lib", "/a", "/b", "/c"}, dirs)
	require.Equal(t, []string{"/etc/ld.so.conf.d/*.conf"}, included)

	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc/d"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/ld.so.conf"), []byte("include d/*.conf\n/last\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/d/a.conf"), []byte("/first\ninclude /etc/ld.so.conf\n"), 0o600))
	s := New()
	s.root = root
	got := s.directories(Glibc).always
	require.Equal(t, "/last", got[len(got)-7])
	require.Contains(t, got, "/first") // also of a file that includes itself
}

func FuzzLoaderConfig(f *testing.F) {
	f.Add("include /etc/ld.so.conf.d/*.conf\n/opt/lib\n")
	f.Fuzz(func(t *testing.T, text string) {
		dirs, _ := parseLoaderConfig(text)
		for _, d := range dirs {
			require.True(t, filepath.IsAbs(d))
		}
	})
}

const someMaps = `55d0c8a00000-55d0c8a02000 r--p 00000000 fe:01 1183 /usr/bin/cat
55d0c8a02000-55d0c8a06000 r-xp 00002000 fe:01 1183                       /usr/bin/cat
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f1000000000-7f1000001000 r-xp 00000000 fe:01 77 /tmp/a b (deleted)
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0 [vdso]
`

func TestMaps(t *testing.T) {
	list, err := parseMaps([]byte(someMaps))
	require.NoError(t, err)
	device := unix.Mkdev(0xfe, 1)
	require.Equal(t, []mapping{
		{0x55d0c8a00000, 0x55d0c8a02000, false, 0, device, 1183, "/usr/bin/cat"},
		{0x55d0c8a02000, 0x55d0c8a06000, true, 0x2000, device, 1183, "/usr/bin/cat"},
		{0x7f0000000000, 0x7f0000001000, true, 0, 0, 0, ""},
		{0x7f1000000000, 0x7f1000001000, true, 0, device, 77, "/tmp/a b (deleted)"},
		{0x7ffc00000000, 0x7ffc00002000, true, 0, 0, 0, "[vdso]"},
	}, list)
}

// TestQueryMaps: the kernel tells the same mappings by either way, and the cheap one ends at its limit.
func TestQueryMaps(t *testing.T) {
	f, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer f.Close()
	queried := queryMaps(f, maxQueried)
	if queried == nil {
		t.Skip("PROCMAP_QUERY: before Linux 6.11")
	}
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	list, err := parseMaps(text)
	require.NoError(t, err)
	list = slices.DeleteFunc(list, func(m mapping) bool { return !m.executable || m.path == "[vsyscall]" }) // in the text only
	require.Equal(t, list, queried)
	require.Len(t, queryMaps(f, 0), 1)
}

func TestMapsTruncated(t *testing.T) {
	for n := range someMaps {
		list, err := parseMaps([]byte(someMaps[:n]))
		if n > 0 && someMaps[n-1] != '\n' {
			require.ErrorIs(t, err, errMaps, n)
		} else {
			require.NoError(t, err)
			require.Less(t, len(list), 5)
		}
	}
}

func FuzzMaps(f *testing.F) {
	f.Add([]byte(someMaps))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseMaps(b)
		for _, m := range list {
			require.GreaterOrEqual(t, m.end, m.begin)
		}
		if err != nil {
			require.ErrorIs(t, err, errMaps)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
