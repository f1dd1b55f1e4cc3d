// Command agent is the first process of a guest. It loads the modules, sets up
// network and RDMA device, reports on the second serial port that it is ready, and
// then runs programs for each client that connects.
//
// It exists instead of a shell script because the guest then needs nothing else
// to start, and because the programs of a test must be started one by one in
// a running guest.
//
// If it fails the guest ends: the emulator exits, and the console log
// has the reason.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// report is the port whose output the emulator passes on.
const report = "/dev/ttyS1"

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: to be started as the first process of a guest")
		os.Exit(2)
	}
	ln, err := boot()
	if err == nil {
		say("ready")
		err = remote.Serve(ln)
	}
	say(fmt.Sprintf("end: %v", err))
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func say(text string) {
	if err := os.WriteFile(report, []byte(text+"\n"), 0); err != nil {
		fmt.Println("agent:", err)
	}
}

// boot sets up the machine. The parameters are in the environment: the kernel passes on those of its command line
// that it does not know.
func boot() (net.Listener, error) {
	for name, value := range map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "HOME": "/root", "LC_ALL": "C"} {
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	for _, step := range []func() error{mounts, loadModules, limits, network, rxe} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return net.Listen("tcp", os.Getenv("GUEST_AGENT"))
}

func mounts() error {
	var errs []error
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/run"},
		{"tmpfs", "/tmp"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			errs = append(errs, err)
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.at, err))
		}
	}
	return errors.Join(errs...)
}

// loadModules loads the modules that the builder has listed, in order.
func loadModules() error {
	lists := []string{"/lib/modules/load"}
	if os.Getenv("GUEST_HOSTS") != "" {
		lists = append(lists, "/lib/modules/load-hosts")
	}
	for _, list := range lists {
		if err := loadList(list); err != nil {
			return err
		}
	}
	return nil
}

func loadList(name string) error {
	list, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for file := range strings.Lines(string(list)) {
		if err := loadModule(strings.TrimSpace(file)); err != nil {
			return fmt.Errorf("module %s: %w", strings.TrimSpace(file), err)
		}
	}
	return nil
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// limits lets programs pin any amount of memory.
func limits() error {
	inf := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &inf)
}

func network() error {
	for _, name := range []string{"all", "default", "eth0"} {
		file := "/proc/sys/net/ipv6/conf/" + name + "/accept_dad"
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "set", "eth0", "mtu", os.Getenv("GUEST_MTU"), "up"},
		{"addr", "add", os.Getenv("GUEST_IP4"), "dev", "eth0"},
		{"-6", "addr", "add", os.Getenv("GUEST_IP6"), "dev", "eth0", "nodad"},
	} {
		if err := run("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// rxe makes the RDMA device and waits for its GIDs, which appear a moment after the addresses: 0 is link-local, then
// IPv4 and IPv6 in the order in which the network was set up.
func rxe() error {
	if err := run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"); err != nil {
		return err
	}
	addr, _, _ := strings.Cut(os.Getenv("GUEST_IP6"), "/")
	want := net.ParseIP(addr)
	for range 200 {
		b, err := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/gids/2")
		if err == nil && want.Equal(net.ParseIP(strings.TrimSpace(string(b)))) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	gids, err := exec.Command("sh", "-c", "head -4 /sys/class/infiniband/rxe0/ports/1/gids/[0-3]").CombinedOutput()
	return fmt.Errorf("no GID %s at index 2: %w\n%s", want, err, gids)
}
