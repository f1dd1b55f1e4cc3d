package proof

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/internal/sockaddr"
)

// timeout bounds each step of a proof, which takes less than a millisecond if nothing drops it.
const timeout = time.Second

// Steps are the steps that the programs have noted for a proof.
type Steps struct{ Left, Answered, Confirmed bool }

// Entries is the programs' table.
type Entries interface {
	// Enter makes the entry of a proof whose packets come through the device ifindex.
	Enter(local, remote netip.AddrPort, ifindex int) error
	// Steps returns what the programs have noted in the entry.
	Steps(local, remote netip.AddrPort) (Steps, error)
	// Forget deletes the entry.
	Forget(local, remote netip.AddrPort)
	// Own reports whether an address belongs to this host.
	Own(netip.Addr) bool
}

// Prover makes proofs in the namespace of its netlink handle. The calling thread must be in that namespace, too.
type Prover struct {
	Netlink  *netlink.Handle
	Entries  Entries
	Legs     *legs.Namespace
	Priority int // SO_PRIORITY of the host's socket, by which the programs recognise it
}

// Prove makes a proof on a device. It returns an [Error] if the connection did not come through.
func (p *Prover) Prove(index int, v6 bool) error {
	e, err := p.ends(index, v6)
	if err != nil {
		return err
	}
	defer e.forget()
	c := &connection{Prover: p, ends: e, app: -1, listener: -1, leg: -1}
	defer c.close()
	if err := c.open(v6); err != nil {
		return err
	}
	return c.run()
}

// connection is a connection between a socket of the host and one of the legs' namespace.
type connection struct {
	*Prover
	ends      ends
	near, far netip.AddrPort // those of the entry; invalid if there is none yet
	app       int            // the host's socket
	listener  int
	leg       int
}

// open makes both sockets and the entry that connects them.
func (c *connection) open(v6 bool) error {
	made, err := c.Legs.Sockets(v6, 1)
	if err != nil {
		return err
	}
	c.listener = made[0]
	if err := legs.SetHops(c.listener, v6, legs.Farthest); err != nil {
		return err
	}
	far, err := bound(c.listener, c.ends.remote)
	if err != nil {
		return err
	}
	if err := unix.Listen(c.listener, 1); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if c.app, err = unix.Socket(legs.Family(v6), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.BindToDevice(c.app, c.ends.device); err != nil {
		return fmt.Errorf("bind to %s: %w", c.ends.device, err)
	}
	if err := unix.SetsockoptInt(c.app, unix.SOL_SOCKET, unix.SO_PRIORITY, c.Priority); err != nil {
		return fmt.Errorf("priority: %w", err)
	}
	near, err := bound(c.app, c.ends.local)
	if err != nil {
		return err
	}
	return c.connect(near, far)
}

// connect makes the entry and starts to connect.
func (c *connection) connect(near, far netip.AddrPort) error {
	c.near, c.far = near, far
	if err := c.Entries.Enter(near, far, c.ends.index); err != nil {
		return err
	}
	err := unix.Connect(c.app, sockaddr.Of(far))
	switch {
	case err == nil, errors.Is(err, unix.EINPROGRESS):
		return nil
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETDOWN):
		return Error{Unroutable}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES): // dropped by a rule that tells the caller
		return Error{Output}
	default:
		return fmt.Errorf("connect: %w", err)
	}
}

// run waits for the connection and for a byte in each direction.
func (c *connection) run() error {
	if !ready(c.app, unix.POLLOUT) || !ready(c.listener, unix.POLLIN) {
		return c.stuck()
	}
	if code, err := unix.GetsockoptInt(c.app, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return c.stuck()
	}
	var err error
	if c.leg, _, err = unix.Accept4(c.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	for _, way := range [][2]int{{c.app, c.leg}, {c.leg, c.app}} {
		if _, err := unix.Write(way[0], []byte{'?'}); err != nil || !ready(way[1], unix.POLLIN) {
			return c.stuck()
		}
		if n, err := unix.Read(way[1], make([]byte, 1)); n != 1 || err != nil {
			return c.stuck()
		}
		info, err := unix.GetsockoptTCPInfo(way[1], unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return fmt.Errorf("tcp_info: %w", err)
		}
		if info.Bytes_received == 0 {
			return Error{Sockmap}
		}
	}
	return nil
}

// stuck returns the error that says how far the connection got.
func (c *connection) stuck() error {
	steps, err := c.Entries.Steps(c.near, c.far)
	switch {
	case err != nil:
		return err
	case !steps.Left:
		return Error{Output}
	case !steps.Confirmed:
		return Error{Input}
	default:
		return Error{Confirm}
	}
}

// close resets the connection, as every leg does, and forgets it.
func (c *connection) close() {
	for _, fd := range []int{c.leg, c.listener, c.app} {
		if fd < 0 {
			continue
		}
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
	if c.near.IsValid() {
		c.Entries.Forget(c.near, c.far)
	}
}

// ready waits until a socket is ready for events, and reports whether it is.
func ready(fd int, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for until := time.Now().Add(timeout); ; {
		n, err := unix.Poll(fds, max(0, int(time.Until(until).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1 && fds[0].Revents&events != 0
	}
}

// bound binds a socket to an address and a free port, and returns both.
func bound(fd int, a netip.Addr) (netip.AddrPort, error) {
	if err := unix.Bind(fd, sockaddr.Of(netip.AddrPortFrom(a, 0))); err != nil {
		return netip.AddrPort{}, fmt.Errorf("bind to %v: %w", a, err)
	}
	own, err := sockaddr.Local(fd)
	return netip.AddrPortFrom(a, own.Port()), err
}

// Way says how far an unsuccessful proof got.
type Way string

// The ways.
const (
	// Unproved: there is no address yet from which to prove.
	Unproved Way = "unproved"
	// Unroutable: the host has no route.
	Unroutable Way = "unroutable"
	// Output: the SYN was dropped before it left, by a rule in output or postrouting.
	Output Way = "output"
	// Input: the answer was dropped before it reached the socket, by a rule in ingress, prerouting or input, or by the
	// reverse-path filter.
	Input Way = "input"
	// Confirm: packets after the answer were dropped.
	Confirm Way = "established"
	// Sockmap: bytes reached the other socket without a packet. A program of the host has put both sockets into a
	// socket map and moves the bytes; they overtake those that were sent as packets before.
	Sockmap Way = "sockmap"
)

// Error is the error of an unsuccessful proof.
type Error struct{ Way Way }

// Error implements error.
func (e Error) Error() string { return "leg not proved: " + string(e.Way) }

var errNoCgroup = errors.New("own control group: no cgroup2")

// Sockops returns the sockops programs that apply to the sockets of this process; mount is the cgroup2 mount. Such a
// program may put sockets into socket maps. The kernel does not notify when one is attached.
func Sockops(mount string) ([]link.AttachedProgram, error) {
	path := procfs.CgroupOf(os.Getpid())
	if path == "" {
		return nil, errNoCgroup
	}
	group, err := os.Open(filepath.Join(mount, path))
	if errors.Is(err, fs.ErrNotExist) { // the mount belongs to another cgroup namespace
		group, err = os.Open(mount)
	}
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	defer func() { _ = group.Close() }()
	found, err := netdev.Whole(func() (*link.QueryResult, error) {
		return link.QueryPrograms(link.QueryOptions{
			Target: int(group.Fd()), Attach: bpf.AttachCGroupSockOps,
			QueryFlags: unix.BPF_F_QUERY_EFFECTIVE, // includes those of the cgroups above
		})
	})
	if err != nil {
		return nil, fmt.Errorf("sockops programs: %w", err)
	}
	return found.Programs, nil
}
