package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// Socket identifies a socket of this network namespace by its addresses. A UDP socket may be
// unconnected, and then matches by its local address alone.
type Socket struct {
	UDP           bool
	Local, Remote netip.AddrPort
}

// Owner is a process that holds a socket.
type Owner struct {
	Program string // its name, as ss(8) shows it; empty: unknown
	PID     int
	UID     uint32 // of the socket
	Cgroup  string // path in cgroup2, "/a/b"
}

// ownersPatience bounds the search through the processes of a host.
const ownersPatience = 2 * time.Second

// Owners returns the owners of the wanted sockets. If several processes hold a socket, the
// one with the lowest PID is returned. Sockets are missing if their processes are in other
// PID namespaces, may not be inspected by this process, or are not reached within
// ownersPatience.
func Owners(wanted []Socket) (map[Socket]Owner, error) {
	inodes, err := inodesOf(wanted)
	if err != nil || len(inodes) == 0 {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("owners of sockets: %w", err)
	}
	owners := map[Socket]Owner{}
	for end := time.Now().Add(ownersPatience); len(entries) > 0 && len(inodes) > 0 && time.Now().Before(end); entries = entries[1:] {
		pid, err := strconv.Atoi(entries[0].Name())
		if err != nil {
			continue
		}
		var o *Owner
		for _, n := range socketsOf(pid) {
			i, ok := inodes[n]
			if !ok {
				continue
			}
			if o == nil {
				o = ownerOf(pid)
			}
			o.UID = i.uid
			for _, s := range i.sockets {
				owners[s] = *o
			}
			delete(inodes, n)
		}
	}
	return owners, nil
}

// socketsOf returns the inodes of a process's sockets; none if it has ended or may not be
// inspected.
func socketsOf(pid int) (inodes []uint32) {
	dir, err := os.Open(File(pid, "fd"))
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	fds, _ := dir.Readdirnames(-1)
	var to [64]byte
	for _, fd := range fds {
		n, err := unix.Readlinkat(int(dir.Fd()), fd, to[:])
		if err != nil {
			continue
		}
		if text, ok := strings.CutPrefix(string(to[:n]), "socket:["); ok {
			if n, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32); err == nil {
				inodes = append(inodes, uint32(n))
			}
		}
	}
	return inodes
}

// inode is a socket under its inode number. One UDP socket may match several wanted ones.
type inode struct {
	uid     uint32
	sockets []Socket
}

// inodesOf asks the kernel for the inodes of the wanted sockets.
func inodesOf(wanted []Socket) (map[uint32]inode, error) {
	tcp, udp := map[Socket]bool{}, map[uint16][]Socket{} // udp: by local port
	for _, s := range wanted {
		if s.UDP {
			udp[s.Local.Port()] = append(udp[s.Local.Port()], s)
		} else {
			tcp[s] = true
		}
	}
	found := map[uint32]inode{}
	var errs []error
	if len(tcp) > 0 {
		errs = append(errs, eachSocket(netlink.SocketDiagTCP, func(s *netlink.Socket, local, remote netip.AddrPort) {
			if n := (Socket{Local: local, Remote: remote}); tcp[n] && s.INode != 0 {
				found[s.INode] = inode{s.UID, []Socket{n}}
			}
		}))
	}
	if len(udp) > 0 {
		errs = append(errs, eachSocket(netlink.SocketDiagUDP, func(s *netlink.Socket, local, remote netip.AddrPort) {
			var of []Socket
			for _, w := range udp[local.Port()] {
				if (w.Local == local || local.Addr().IsUnspecified()) && (remote.Port() == 0 || w.Remote == remote) {
					of = append(of, w)
				}
			}
			if len(of) > 0 && s.INode != 0 {
				found[s.INode] = inode{s.UID, of}
			}
		}))
	}
	return found, errors.Join(errs...)
}

// eachSocket lists the sockets of both families. It also uses what an interrupted dump has
// returned.
func eachSocket(dump func(family uint8) ([]*netlink.Socket, error), tell func(s *netlink.Socket, local, remote netip.AddrPort)) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := dump(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list sockets: %w", err)
		}
		for _, s := range list {
			tell(s, addrPort(s.ID.Source, s.ID.SourcePort), addrPort(s.ID.Destination, s.ID.DestinationPort))
		}
	}
	return nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

// ownerOf reads what /proc says about a process.
func ownerOf(pid int) *Owner {
	return &Owner{PID: pid, Program: procfs.NameOf(pid), Cgroup: procfs.CgroupOf(pid)}
}
