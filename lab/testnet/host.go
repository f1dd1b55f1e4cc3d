package testnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is a network namespace that acts as a machine. It is safe for concurrent use.
type Host struct {
	Name   string
	Device string // its device at the switch
	Addr4  netip.Addr
	Addr6  netip.Addr

	node   *node
	net    *Network
	number int

	mu      sync.Mutex
	procs   []*Proc
	cgroup  *Cgroup
	through []string // program that runs the apps
	// environment changes that of programs. If nil, they have that of this process.
	environment func(env []string) []string
}

// Namespace returns the name of the host's network namespace, as `ip netns` lists it.
func (h *Host) Namespace() string { return h.node.nsName }

// NamespacePath returns the file of the host's network namespace.
func (h *Host) NamespacePath() string { return filepath.Join(runDir, h.node.nsName) }

// AddrPort4 returns the host's IPv4 address with a port.
func (h *Host) AddrPort4(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.Addr4, port) }

// AddrPort6 returns the host's IPv6 address with a port.
func (h *Host) AddrPort6(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.Addr6, port) }

// Within puts every process that is started on the host from now on into a cgroup. A gateway on a host with a cgroup of
// its own attaches its programs there; hosts that share the root run each other's programs, too.
func (h *Host) Within(g *Cgroup) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cgroup = g
}

// Environment makes programs of the host start with a changed environment from now on. Apps have that of this process.
func (h *Host) Environment(change func(env []string) []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.environment = change
}

// Do runs fn in the host's namespace, on the calling goroutine with its thread locked. If the thread cannot be moved
// back, it ends with the goroutine. Sockets that fn creates stay in the namespace; goroutines that it starts do not run
// there.
func (h *Host) Do(fn func() error) error { return doIn(h.node.ns, fn) }

// Stay moves the calling goroutine and its thread into the host's namespace for good; the thread ends with the
// goroutine. It is for goroutines that create sockets at any time. Goroutines that they start do not run there.
func (h *Host) Stay() error {
	runtime.LockOSThread()
	if err := netns.Set(h.node.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter namespace: %w", err)
	}
	return nil
}

// Dial opens a native connection from the host to an address with a literal IP.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		var d net.Dialer
		d.SetMultipathTCP(false)
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen opens a native listener on the host. A child process that is just being started holds copies of all listeners
// of this process until it executes its program, including those just closed. So Listen retries for a second if the
// address is in use.
func (h *Host) Listen(network, address string) (ln net.Listener, err error) {
	err = h.Do(func() error {
		var c net.ListenConfig
		c.SetMultipathTCP(false)
		for until := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
			ln, err = c.Listen(context.Background(), network, address)
			if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(until) {
				return err
			}
		}
	})
	return ln, err
}

// SetSysctl sets a sysctl of the host. The name is written with dots, so a device name in it must not contain one.
func (h *Host) SetSysctl(name, value string) error { return h.node.sysctl(name, value) }

// Sysctl reads a sysctl of the host.
func (h *Host) Sysctl(name string) (value string, err error) {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	err = h.Do(func() error {
		b, err := os.ReadFile(path)
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}

// NFT applies a ruleset (`nft -f -`) on the host.
func (h *Host) NFT(ruleset string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(ruleset)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", h.Name, err, out)
	}
	return nil
}

// FlushNFT removes every nftables rule of the host.
func (h *Host) FlushNFT() error { return h.NFT("flush ruleset\n") }

// AddAddress gives the host's device another address.
func (h *Host) AddAddress(p netip.Prefix) error {
	link, err := h.node.nl.LinkByName(h.Device)
	if err != nil {
		return fmt.Errorf("device %s: %w", h.Device, err)
	}
	return h.node.addAddress(link, p)
}

// RemoveAddress takes an address from the host's device.
func (h *Host) RemoveAddress(p netip.Prefix) error {
	link, err := h.node.nl.LinkByName(h.Device)
	if err != nil {
		return fmt.Errorf("device %s: %w", h.Device, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if err := h.node.nl.AddrDel(link, addr); err != nil {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return nil
}

// SetMTU changes the MTU of the host's device, only on the host's side.
func (h *Host) SetMTU(mtu int) error {
	link, err := h.node.nl.LinkByName(h.Device)
	if err != nil {
		return fmt.Errorf("device %s: %w", h.Device, err)
	}
	return h.node.nl.LinkSetMTU(link, mtu)
}

// SetLink unplugs the host's cable (false) or plugs it in again.
func (h *Host) SetLink(up bool) error {
	link, err := h.net.sw.nl.LinkByName(portDevice(h.Name))
	if err != nil {
		return fmt.Errorf("port of %s: %w", h.Name, err)
	}
	if up {
		return h.net.sw.nl.LinkSetUp(link)
	}
	return h.net.sw.nl.LinkSetDown(link)
}

// SetOffload enables or disables TSO, GSO and GRO on the host's device and on the switch's end of the link.
func (h *Host) SetOffload(on bool) error {
	state := "off"
	if on {
		state = "on"
	}
	features := []string{"tso", state, "gso", state, "gro", state}
	if err := ethtool(h.node, h.Device, features); err != nil {
		return err
	}
	return ethtool(h.net.sw, portDevice(h.Name), features)
}

func ethtool(nd *node, device string, features []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := nd.command(ctx, "ethtool", append([]string{"-K", device}, features...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ethtool -K %s: %w: %s", device, err, out)
	}
	return nil
}

// Links returns the names of the host's network devices. A gateway that is gone must have removed its own.
func (h *Host) Links() ([]string, error) {
	links, err := h.node.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("links of %s: %w", h.Name, err)
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.Attrs().Name
	}
	return names, nil
}

// Rules returns the host's policy routing rules of both families, one per line.
func (h *Host) Rules() ([]string, error) {
	rules, err := h.node.nl.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("rules of %s: %w", h.Name, err)
	}
	lines := make([]string, len(rules))
	for i, r := range rules {
		lines[i] = r.String()
	}
	return lines, nil
}

// Processes returns the processes on the host.
func (h *Host) Processes() []int { return processesIn(h.node.ns) }

// close ends the host's processes and removes its namespace.
func (h *Host) close() error {
	h.mu.Lock()
	procs := h.procs
	h.procs = nil
	h.mu.Unlock()
	for _, p := range procs {
		_ = p.Kill()
	}
	// What they have left behind may hold our pipes open, so kill it first.
	killIn(h.node.ns)
	for _, p := range procs {
		_ = p.Wait()
	}
	err := h.node.close()
	if err != nil {
		return errors.Join(fmt.Errorf("close host %s", h.Name), err)
	}
	return nil
}
