package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// TB is the part of [testing.TB] that this package uses, so that programs that are not tests, such as the
// demonstration, can use this package without importing testing.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
}

// RequireVariable is the environment variable that lists, separated by commas, what must be available. If something
// listed is missing, tests fail instead of being skipped.
const RequireVariable = "SMCGW_REQUIRE"

// Require skips the test unless everything that it needs is available: "root", "bpf" (programs can be loaded and
// attached by tcx), "vm" (an emulated machine can be started on a tap), or the name of a program. It fails the test
// instead if SMCGW_REQUIRE lists what is missing. Listing root requires every program, too, since `make test` installs
// them then.
func Require(tb TB, needs ...string) {
	tb.Helper()
	for _, need := range needs {
		if err := have(need); err != nil {
			Lack(tb, need, err)
		}
	}
}

// Lack skips the test because something that it needs is missing, or fails it if SMCGW_REQUIRE lists that, like
// [Require]. It is for what a test itself finds missing: "kernel" means a feature of the kernels of distributions.
func Lack(tb TB, need string, err error) {
	tb.Helper()
	if Required(need) {
		tb.Fatalf("needs %s, which %s=%s promises: %v", need, RequireVariable, os.Getenv(RequireVariable), err)
		return
	}
	tb.Skipf("SKIPPED: needs %s: %v (%s=%s would make this a failure)", need, err, RequireVariable, need)
}

// Required reports whether SMCGW_REQUIRE lists need.
func Required(need string) bool {
	required := strings.Split(os.Getenv(RequireVariable), ",")
	program := !slices.Contains([]string{"root", "bpf", "vm", "kernel"}, need)
	return slices.Contains(required, need) || program && slices.Contains(required, "root")
}

func have(need string) error {
	switch need {
	case "root":
		if uid := os.Geteuid(); uid != 0 {
			return fmt.Errorf("user id %d", uid)
		}
		return nil
	case "bpf":
		return haveBPF()
	case "vm":
		return haveVM()
	default:
		_, err := exec.LookPath(need)
		return err
	}
}

// haveBPF checks for what the gateway needs: tcx came with Linux 6.6.
func haveBPF() error {
	if err := features.HaveProgramType(ebpf.SchedCLS); err != nil {
		return fmt.Errorf("load a tcx program: %w", err)
	}
	if err := features.HaveProgramType(ebpf.SockOps); err != nil {
		return fmt.Errorf("load a sockops program: %w", err)
	}
	return nil
}

// InNamespace runs fn on a thread of its own in a new network namespace, which ends with the thread. It needs root.
func InNamespace(tb TB, fn func()) {
	tb.Helper()
	Require(tb, "root")
	done := make(chan error, 1)
	go func() {
		err := errors.New("ended early") // by a FailNow of fn
		defer func() { done <- err }()
		runtime.LockOSThread()
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			fn()
		}
	}()
	if err := <-done; err != nil {
		tb.Fatalf("network namespace: %v", err)
	}
}

// Emulator is the program that runs emulated machines.
const Emulator = "qemu-system-x86_64"

// haveVM checks for root, for taps, and for the emulator.
func haveVM() error {
	if err := have("root"); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("taps: %w", err)
	}
	return have(Emulator)
}

// Start builds a network for a test and removes it at the end of the test. If the test fails, it logs the output of the
// programs on the hosts.
func Start(tb TB, cfg Config) *Network {
	tb.Helper()
	Require(tb, "root", "bpf")
	n, err := New(cfg)
	if err != nil {
		tb.Fatalf("test network: %v", err)
		return nil
	}
	still := watchStandstills()
	tb.Cleanup(func() {
		if seen := still.end(); tb.Failed() {
			n.logTo(tb)
			tb.Logf("the machine stood still: %q", seen)
		}
		if err := n.Close(); err != nil {
			tb.Errorf("close test network: %v", err)
		}
	})
	return n
}

// logTail bounds how much output of one program is logged.
const logTail = 8 << 10

func (n *Network) logTo(tb TB) {
	if s, err := n.BoxStats(); err == nil {
		tb.Logf("middlebox: %+v", s)
	}
	for _, h := range append(slices.Clone(n.hosts), n.behind...) {
		h.mu.Lock()
		procs := slices.Clone(h.procs)
		h.mu.Unlock()
		for _, p := range procs {
			out := p.Output()
			if len(out) > logTail {
				out = "... " + out[len(out)-logTail:]
			}
			tb.Logf("%s: %s [%s]\n%s", h.Name, p.Name, p.state(), out)
		}
	}
}

func (p *Proc) state() string {
	select {
	case <-p.done:
		if p.err == nil {
			return "exit status 0"
		}
		return p.err.Error()
	default:
		return "running"
	}
}
