package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// Addresses and GID indexes of a guest.
const (
	Device    = "rxe0"
	GIDIndex4 = 1
	GIDIndex6 = 2
)

// agentPort is the port on which the agent accepts commands.
const agentPort = 7

// mac returns the MAC address. A fixed one for the first guest makes its link-local address, and with it its first
// GID, known; that of the second guest is the next.
func (c Config) mac() string {
	if c.Second {
		return "52:54:00:77:00:03"
	}
	return "52:54:00:77:00:02"
}

// tap returns the tap to which the guest's cable goes.
func (c Config) tap() string {
	if c.Second {
		return testnet.SecondTap
	}
	return testnet.TapDevice
}

// Guest is a running machine. Its methods may be called from any goroutine.
type Guest struct {
	Addr4, Addr6 netip.Addr

	host *testnet.Tapped
	dir  string // of this run, temporary
	cmd  *testnet.Cmd
	done chan struct{}

	mu    sync.Mutex // guards everything below
	procs []*remote.Process
}

// Config configures a guest. The zero value is good for tests.
type Config struct {
	// CPUs the guest has. Default 2.
	CPUs int
	// Memory of the guest in MiB. Default 768.
	Memory int
	// MTU of the guest's device. Default 1500, which makes the path MTU 1024.
	MTU int
	// Accel is the emulator's accelerator. Default "tcg,thread=multi": kvm
	// needs hardware virtualization that hosts of tests seldom have.
	Accel string
	// Files maps paths in the guest to the files, which are programs, to put there.
	Files map[string]string
	// Second makes it the second guest of a host with two taps. Its addresses follow those of the first.
	Second bool
	// Hosts loads what namespaces in the guest need to play hosts of many kinds.
	Hosts bool
	// BootTimeout bounds the start. Default 4 minutes; an idle machine takes seconds.
	BootTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.Memory == 0 {
		c.Memory = 768
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	if c.Accel == "" {
		c.Accel = "tcg,thread=multi"
	}
	if c.BootTimeout == 0 {
		c.BootTimeout = 4 * time.Minute
	}
	return c
}

// Boot starts a guest on the host's tap and returns once its agent accepts commands. The emulator ends with the
// calling process and with the host.
func Boot(ctx context.Context, host *testnet.Tapped, img Image, cfg Config) (*Guest, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.BootTimeout)
	defer cancel()
	for try := 1; ; try++ {
		g, err := bootOnce(ctx, host, img, cfg)
		if try == bootTries || !errors.Is(err, errEnded) {
			return g, err
		}
	}
}

// bootTries is how often a guest is started if its kernel dies before anything runs in it. While it boots, a kernel
// rewrites its own code under its other processors; an emulated one was seen to run into the trap instruction that it
// writes there meanwhile.
const bootTries = 3

func bootOnce(ctx context.Context, host *testnet.Tapped, img Image, cfg Config) (*Guest, error) {
	dir, err := os.MkdirTemp("", "smcgw-guest-")
	if err != nil {
		return nil, err
	}
	g := &Guest{
		Addr4: host.Addr4.Next(), Addr6: host.Addr6.Next(),
		host: host, dir: dir, done: make(chan struct{}),
	}
	if cfg.Second {
		g.Addr4, g.Addr6 = g.Addr4.Next(), g.Addr6.Next()
	}
	if err := g.start(ctx, img, cfg); err != nil {
		err = fmt.Errorf("boot guest: %w; console:\n%s", err, g.Console())
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// errEnded means that the emulator ended before the guest was ready.
var errEnded = errors.New("emulator ended")

func (g *Guest) start(ctx context.Context, img Image, cfg Config) error {
	initrd := filepath.Join(g.dir, "initrd")
	if err := addAgent(ctx, g.dir, img.Root, initrd, cfg.Files); err != nil {
		close(g.done)
		return err
	}
	// The emulator outlives ctx, which bounds the start only.
	g.cmd = g.host.Command(context.Background(), testnet.Emulator, g.arguments(img, initrd, cfg)...)
	stdout, out := io.Pipe()
	var stderr strings.Builder
	g.cmd.Stdout, g.cmd.Stderr = out, &stderr
	if err := g.cmd.Start(); err != nil {
		close(g.done)
		return err
	}
	go g.reap(out)
	ready := make(chan error, 1)
	go waitReady(stdout, ready)
	select {
	case err := <-ready:
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr.String())
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Guest) reap(out *io.PipeWriter) {
	_ = g.cmd.Wait()
	_ = out.Close()
	close(g.done)
}

// waitReady reads the agent's reports until the emulator ends.
func waitReady(r io.Reader, ready chan<- error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		switch {
		case line == "ready":
			ready <- nil
		case line != "":
			trySend(ready, fmt.Errorf("agent: %s", line))
		}
	}
	trySend(ready, errEnded)
}

func trySend(c chan<- error, err error) {
	select {
	case c <- err:
	default:
	}
}

// arguments returns the arguments of the emulator: no devices but two serial ports (the console to a file, the
// agent's reports to our pipe), random numbers and the network. The default machine boots a second faster than q35.
// The network device gets a speed, because rxe logs every query that finds none. The kernel does not test the timer,
// which on a busy machine ticks too rarely for that test.
func (g *Guest) arguments(img Image, initrd string, cfg Config) []string {
	params := []string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "no_timer_check", "random.trust_cpu=on",
		fmt.Sprintf("GUEST_IP4=%s/24", g.Addr4), fmt.Sprintf("GUEST_IP6=%s/64", g.Addr6),
		fmt.Sprintf("GUEST_MTU=%d", cfg.MTU), "GUEST_AGENT=" + g.agent(),
	}
	if cfg.Hosts {
		params = append(params, "GUEST_HOSTS=1")
	}
	return []string{
		"-accel", cfg.Accel, "-cpu", "max", "-smp", fmt.Sprint(cfg.CPUs), "-m", fmt.Sprint(cfg.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", img.Kernel, "-initrd", initrd, "-append", strings.Join(params, " "),
		"-serial", "file:" + g.console(), "-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent",
		"-device", "virtio-rng-pci",
		"-netdev", "tap,id=n0,ifname=" + cfg.tap() + ",script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=n0,mac=" + cfg.mac() + ",speed=10000,duplex=full,romfile=",
	}
}

func (g *Guest) console() string { return filepath.Join(g.dir, "console") }

func (g *Guest) agent() string { return netip.AddrPortFrom(g.Addr4, agentPort).String() }

// addAgent builds the agent and appends it, as /init, and the other files to a copy of the root file system: the
// kernel unpacks archives one after another.
func addAgent(ctx context.Context, dir, root, initrd string, files map[string]string) error {
	binary := filepath.Join(dir, "agent")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary,
		"github.com/smcgw/smcgw/tests/interop/guest/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build agent: %w: %s", err, out)
	}
	from, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.Create(initrd)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	a := newArchive(to)
	err = errors.Join(err, addProgram(a, "init", binary))
	for name, file := range files {
		err = errors.Join(err, addProgram(a, strings.TrimPrefix(name, "/"), file))
	}
	return errors.Join(err, a.close(), to.Close())
}

func addProgram(a *archive, name, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return a.file(name, 0o755, content)
}

// Console returns the log of the guest's kernel.
func (g *Guest) Console() string {
	b, err := os.ReadFile(g.console())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Start starts a program in the guest, which is killed with the guest at the latest. Its output arrives line by line,
// not only when its buffers are full.
func (g *Guest) Start(name string, args ...string) (*remote.Process, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := g.host.Dial(ctx, "tcp", g.agent())
	for errors.Is(err, unix.EHOSTUNREACH) && ctx.Err() == nil { // the host has just failed to resolve it
		time.Sleep(200 * time.Millisecond)
		conn, err = g.host.Dial(ctx, "tcp", g.agent())
	}
	if err != nil {
		return nil, fmt.Errorf("agent of guest: %w; console:\n%s", err, g.Console())
	}
	p, err := remote.Start(conn, remote.Command{Args: append([]string{"stdbuf", "-oL", name}, args...)})
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.procs = append(g.procs, p)
	return p, nil
}

// Run runs a program in the guest and returns its output.
func (g *Guest) Run(ctx context.Context, name string, args ...string) (string, error) {
	p, err := g.Start(name, args...)
	if err != nil {
		return "", err
	}
	defer p.Kill()
	err = p.Wait(ctx)
	return p.Output(), err
}

// Ended tells whether the guest has ended, for instance because its kernel has crashed.
func (g *Guest) Ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// Kill ends the guest at once, as a power failure does.
func (g *Guest) Kill() {
	if g.cmd != nil && g.cmd.Process != nil {
		_ = g.cmd.Process.Kill()
	}
	<-g.done
}

// Close kills the guest and everything in it. It is idempotent.
func (g *Guest) Close() error {
	g.Kill()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.procs {
		p.Kill()
	}
	g.procs = nil
	return os.RemoveAll(g.dir)
}
