package promotion

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/internal/procfs"
)

const (
	// fresh is how long an answer holds, pathsKept and namespacesKept how many are kept.
	fresh          = time.Second / 2
	pathsKept      = 4096
	namespacesKept = 1024
	// A review looks at namespaces anew for a tenth of a processor's time at most: there can be thousands, with thousands of
	// devices each.
	reviewPerSecond = time.Second / 10
	reviewAtOnce    = time.Second / 5
	// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
	skipStats = 1 << 3
)

// shapers tells which connections cross a queueing discipline that shapes: the bytes of a connection in process would not
// be shaped. It looks at the devices of its own network namespace, and at those of the namespaces of programs, by
// rtnetlink. It changes nothing, but that namespaces of programs get numbers in its own, as the kernel gives them. Its
// methods may be called by several goroutines.
type shapers struct {
	own      *netlink.Handle
	requests map[int]*nl.SocketHandle
	cookie   uint64 // of the own namespace
	inode    uint64
	reviews  *rate.Limiter // in nanoseconds

	mu         sync.Mutex // guards everything below
	here       shapingDevices
	namespaces map[uint64]within // by inode
	paths      map[shapedPath]shapedSeen
}

// shapedPath is that of a connection, as one of its ends has it.
type shapedPath struct {
	Netns         uint64 // its cookie; 0: that of its process
	Local, Remote netip.Addr
}

type shapedSeen struct {
	shaped bool
	at     time.Time
}

// shapingDevices are those of a namespace.
type shapingDevices struct {
	links   []netlink.Link
	shaping map[int]bool // by index
	at      time.Time
}

// within is what is known of another namespace.
type within struct {
	at                        time.Time
	outward, loopback, behind bool // a device in it shapes; its loopback device; one here that leads into it, or its bridge
}

// shapes reports whether a path in it shapes. Which of several devices it takes is not known.
func (n within) shapes(k shapedPath) bool {
	if k.Remote == k.Local || k.Remote.IsLoopback() {
		return n.loopback
	}
	return n.outward || n.behind
}

// openShapers looks from the network namespace of the calling thread.
func openShapers() (*shapers, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("routes: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("devices: %w", err)
	}
	p := &shapers{own: h, requests: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}, namespaces: map[uint64]within{}, paths: map[shapedPath]shapedSeen{},
		reviews: rate.NewLimiter(rate.Limit(reviewPerSecond), int(reviewAtOnce)),
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		p.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		_ = unix.Close(fd)
	}
	if err == nil {
		p.inode, err = inodeOf("/proc/thread-self/ns/net")
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return p, nil
}

// Close ends it. Nothing is asked any more.
func (p *shapers) Close() {
	p.own.Close()
	p.requests[unix.NETLINK_ROUTE].Close()
}

// Shaped reports whether a path that begins at a process shapes, as far as that can be seen. pid may be 0: it is not known.
func (p *shapers) Shaped(key shapedPath, pid int) bool { return p.shaped(key, pid, p.namespace) }

// StillShaped is Shaped for a path that was looked at before.
func (p *shapers) StillShaped(key shapedPath, pid int) bool { return p.shaped(key, pid, p.reviewed) }

// looker tells what is known of the namespace of a process.
type looker func(inode uint64, pid int, now time.Time) within

func (p *shapers) shaped(key shapedPath, pid int, look looker) bool {
	p.mu.Lock()
	defer p.mu.Unlock() // held while the kernel is asked: one at a time
	inode := p.inode
	if key.Netns != p.cookie {
		pid, inode = namespaceOf(pid)
	}
	now := time.Now()
	p.renew(now)
	if inode == p.inode {
		return len(p.here.shaping) > 0 && p.path(key, now)
	}
	return look(inode, pid, now).shapes(key)
}

// Any reports whether anything at all shapes that a process's connections could meet, as far as that can be seen.
func (p *shapers) Any(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.renew(now)
	if len(p.here.shaping) > 0 {
		return true
	}
	pid, inode := namespaceOf(pid)
	if inode == p.inode {
		return false
	}
	n := p.reviewed(inode, pid, now)
	return n.outward || n.loopback // what is behind is here
}

// path looks at one that begins here.
func (p *shapers) path(key shapedPath, now time.Time) bool {
	if s, ok := p.paths[key]; ok && now.Sub(s.at) < fresh {
		return s.shaped
	}
	if len(p.paths) >= pathsKept {
		clear(p.paths)
	}
	s := shapedSeen{p.leadsThroughShaper(key), now}
	p.paths[key] = s
	return s.shaped
}

func (p *shapers) renew(now time.Time) {
	if now.Sub(p.here.at) >= fresh {
		p.here = devicesOf(p.own, now)
	}
}

// namespace is what is known of that of a process; inode 0: nothing.
func (p *shapers) namespace(inode uint64, pid int, now time.Time) within {
	if inode == 0 {
		return within{}
	}
	if n, ok := p.namespaces[inode]; ok && now.Sub(n.at) < fresh {
		return n
	}
	if len(p.namespaces) >= namespacesKept {
		clear(p.namespaces)
	}
	n := p.links(pid, now)
	p.namespaces[inode] = n
	return n
}

// reviewed is what is known of a namespace that was looked at before, when there was time for it.
func (p *shapers) reviewed(inode uint64, pid int, now time.Time) within {
	n, ok := p.namespaces[inode]
	if ok && now.Sub(n.at) < fresh || p.reviews.TokensAt(now) <= 0 {
		return n
	}
	n = p.namespace(inode, pid, now)
	p.reviews.ReserveN(now, int(min(time.Since(now), reviewAtOnce)))
	return n
}

// links looks at the devices in the namespace of a process, which takes no privilege there: of each its own discipline is
// told, and not those below it. The namespace gets a number here for that, as it does when a device leads into it.
func (p *shapers) links(pid int, now time.Time) within {
	n := within{at: now}
	id, err := p.own.GetNetNsIdByPid(pid)
	if err == nil && id < 0 {
		if err = p.own.SetNetNsIdByPid(pid, -1); err == nil {
			id, err = p.own.GetNetNsIdByPid(pid)
		}
	}
	if err != nil || id < 0 {
		return n
	}
	n.behind = p.pairsShape(id)
	list, err := again(func() ([][]byte, error) {
		q := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		q.Sockets = p.requests
		q.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		q.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(id))))
		q.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
		return q.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return n
	}
	for _, m := range list {
		if len(m) < unix.SizeofIfInfomsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			continue
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_QDISC && shapesByName(unix.ByteSliceToString(a.Value)) {
				if nl.DeserializeIfInfomsg(m).Flags&unix.IFF_LOOPBACK != 0 {
					n.loopback = true
				} else {
					n.outward = true
				}
			}
		}
	}
	return n
}

// pairsShape looks at the devices here whose other halves are in a namespace, and at their bridges.
func (p *shapers) pairsShape(id int) bool {
	return slices.ContainsFunc(p.here.links, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() == "veth" && a.NetNsID == id && (p.here.shaping[a.Index] || p.here.shaping[a.MasterIndex])
	})
}

// namespaceOf is the network namespace of a process, and a thread in it that lives; 0: not known.
func namespaceOf(pid int) (tid int, inode uint64) {
	if pid <= 0 {
		return 0, 0
	}
	dir := procfs.Living(pid)
	tid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		return 0, 0
	}
	if inode, err = inodeOf(dir + "/ns/net"); err != nil {
		return 0, 0
	}
	return tid, inode
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// leadsThroughShaper looks at the device by which this namespace sends from one address to another.
func (p *shapers) leadsThroughShaper(k shapedPath) bool {
	routes, err := p.own.RouteGetWithOptions(k.Remote.WithZone("").AsSlice(), &netlink.RouteGetOptions{SrcAddr: k.Local.WithZone("").AsSlice()})
	return err == nil && len(routes) > 0 && p.here.shaping[routes[0].LinkIndex]
}

// devicesOf looks at all devices of a namespace. What comes in may be sent to an intermediate device, which shapes it: so
// while one does, all whose input can be sent somewhere do.
func devicesOf(h *netlink.Handle, now time.Time) shapingDevices {
	d := shapingDevices{at: now, shaping: map[int]bool{}}
	list, err := again(func() ([]netlink.Qdisc, error) { return h.QdiscList(nil) })
	if err != nil {
		return d
	}
	var inputs []int
	for _, q := range list {
		switch {
		case isShaper(q):
			d.shaping[q.Attrs().LinkIndex] = true
		case q.Type() == "ingress", q.Type() == "clsact":
			inputs = append(inputs, q.Attrs().LinkIndex)
		}
	}
	if len(d.shaping) == 0 {
		return d
	}
	if d.links, err = again(h.LinkList); err != nil {
		return d
	}
	if slices.ContainsFunc(d.links, func(l netlink.Link) bool { return l.Type() == "ifb" && d.shaping[l.Attrs().Index] }) {
		for _, i := range inputs {
			d.shaping[i] = true
		}
	}
	return d
}

// isShaper reports whether a queueing discipline delays, drops or bounds on purpose.
func isShaper(q netlink.Qdisc) bool {
	f, ok := q.(*netlink.Fq)
	return shapesByName(q.Type()) || ok && f.FlowMaxRate != 0 && f.FlowMaxRate != math.MaxUint32
}

func shapesByName(kind string) bool {
	return slices.Contains([]string{"tbf", "htb", "hfsc", "cbq", "netem", "cake"}, kind)
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
