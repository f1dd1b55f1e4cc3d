package shapers

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// pathFresh is how long an answer about a path holds, pathsKept how many are kept.
	pathFresh = time.Second
	pathsKept = 4096
)

// Paths looks at the devices of its own network namespace, and at those of the namespaces of programs that it may look
// into. Its methods may be called by several goroutines.
type Paths struct {
	own    *netlink.Handle
	cookie uint64 // of the own namespace

	mu   sync.Mutex // guards everything below
	seen map[Path]pathSeen
}

// Path is that of a connection, as one of its ends has it.
type Path struct {
	Netns         uint64 // its cookie
	Local, Remote netip.Addr
}

type pathSeen struct {
	shaped bool
	at     time.Time
}

// Open looks from the network namespace of the calling thread.
func Open() (*Paths, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	p := &Paths{own: h, seen: map[Path]pathSeen{}}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		p.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		_ = unix.Close(fd)
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return p, nil
}

// Close ends it. Nothing is asked any more.
func (p *Paths) Close() { p.own.Close() }

// Shaped reports whether a path that begins at a process shapes, as far as that can be seen. pid may be 0: it is not known.
func (p *Paths) Shaped(key Path, pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock() // held while the kernel is asked: one at a time
	now := time.Now()
	if s, ok := p.seen[key]; ok && now.Sub(s.at) < pathFresh {
		return s.shaped
	}
	s := pathSeen{p.look(key, pid), now}
	if len(p.seen) >= pathsKept {
		clear(p.seen)
	}
	p.seen[key] = s
	return s.shaped
}

func (p *Paths) look(k Path, pid int) bool {
	if k.Netns == p.cookie {
		return leadsThroughShaper(p.own, k.Local, k.Remote)
	}
	if pid > 0 && p.pairsShape(pid) {
		return true
	}
	h := within(pid)
	if h == nil {
		return false
	}
	defer h.Close()
	return leadsThroughShaper(h, k.Local, k.Remote)
}

// pairsShape looks at the devices here whose other halves are in the namespace of a process, and at their bridges.
func (p *Paths) pairsShape(pid int) bool {
	id, err := netlink.GetNetNsIdByPid(pid)
	if err != nil || id < 0 {
		return false
	}
	links, err := again(p.own.LinkList)
	if err != nil {
		return false
	}
	at := map[int]bool{}
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().NetNsID == id {
			at[l.Attrs().Index] = true
			at[l.Attrs().MasterIndex] = true
		}
	}
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return at[l.Attrs().Index] && shapes(p.own, l, links) })
}

// within looks from the namespace of a process, if that may be entered; else nil.
func within(pid int) *netlink.Handle {
	if pid <= 0 {
		return nil
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return nil
	}
	defer func() { _ = ns.Close() }()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil
	}
	return h
}

// leadsThroughShaper looks at the device by which a namespace sends from one address to another.
func leadsThroughShaper(h *netlink.Handle, from, to netip.Addr) bool {
	routes, err := h.RouteGetWithOptions(to.WithZone("").AsSlice(), &netlink.RouteGetOptions{SrcAddr: from.WithZone("").AsSlice()})
	if err != nil || len(routes) == 0 {
		return false
	}
	links, err := again(h.LinkList)
	if err != nil {
		return false
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == routes[0].LinkIndex })
	return i >= 0 && shapes(h, links[i], links)
}

// shapes reports whether a device has a queueing discipline that shapes. What comes in may be sent to an intermediate
// device, which shapes it.
func shapes(h *netlink.Handle, l netlink.Link, links []netlink.Link) bool {
	list, err := again(func() ([]netlink.Qdisc, error) { return h.QdiscList(l) })
	if err != nil {
		return false
	}
	for _, q := range list {
		if isShaper(q) {
			return true
		}
		if q.Type() != "ingress" {
			continue
		}
		for _, ifb := range links {
			if ifb.Type() != "ifb" {
				continue
			}
			inner, err := again(func() ([]netlink.Qdisc, error) { return h.QdiscList(ifb) })
			if err == nil && slices.ContainsFunc(inner, isShaper) {
				return true
			}
		}
	}
	return false
}

// isShaper reports whether a queueing discipline delays, drops or bounds on purpose.
func isShaper(q netlink.Qdisc) bool {
	switch q.Type() {
	case "tbf", "htb", "hfsc", "cbq", "netem", "cake":
		return true
	case "fq":
		f, ok := q.(*netlink.Fq)
		return ok && f.FlowMaxRate != 0 && f.FlowMaxRate != math.MaxUint32
	}
	return false
}

// attempts is how often a list is read that changes under the reader.
const attempts = 3

func again[T any](list func() (T, error)) (out T, err error) {
	for range attempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}
