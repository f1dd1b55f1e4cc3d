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
	// fresh is how long an answer holds; pathsKept and namespacesKept bound the answers that are kept.
	fresh          = time.Second / 2
	pathsKept      = 4096
	namespacesKept = 1024
	// Reviews may spend a tenth of a processor's time on examining namespaces: there can be thousands, with thousands
	// of devices each.
	reviewPerSecond = time.Second / 10
	reviewAtOnce    = time.Second / 5
	// skipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
	skipStats = 1 << 3
)

// shapers tells which connections cross a queueing discipline that shapes; promoted, their bytes would bypass it. It
// examines by rtnetlink the devices of its own network namespace, and those of programs' namespaces. Its only side
// effect is that the kernel assigns IDs to those namespaces in its own. Its methods are safe for concurrent use.
type shapers struct {
	own      *netlink.Handle
	requests map[int]*nl.SocketHandle
	cookie   uint64 // of its own namespace
	inode    uint64
	reviews  *rate.Limiter // in nanoseconds of time

	mu         sync.Mutex // guards everything below
	here       shapingDevices
	namespaces map[uint64]within // by inode
	paths      map[shapedPath]shapedSeen
}

// shapedPath is the path of a connection, as one of its ends has it.
type shapedPath struct {
	Netns         uint64 // cookie; 0: the namespace of its process
	Local, Remote netip.Addr
}

type shapedSeen struct {
	shaped bool
	at     time.Time
}

// shapingDevices are the devices of a namespace, and which of them shape.
type shapingDevices struct {
	links   []netlink.Link
	shaping map[int]bool // by index
	at      time.Time
}

// within is what is known of another namespace.
type within struct {
	at                        time.Time
	outward, loopback, behind bool // shapes: a device in it; its loopback; a veth here leading into it, or its bridge
}

// shapes reports whether a path from the namespace shapes. It is not known which of several devices a path takes.
func (n within) shapes(k shapedPath) bool {
	if k.Remote == k.Local || k.Remote.IsLoopback() {
		return n.loopback
	}
	return n.outward || n.behind
}

// openShapers makes a shapers for the network namespace of the calling thread.
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

// Close closes the sockets. No method may be called any more.
func (p *shapers) Close() {
	p.own.Close()
	p.requests[unix.NETLINK_ROUTE].Close()
}

// Shaped reports whether a path from a process shapes, as far as can be seen. pid may be 0 if it is not known.
func (p *shapers) Shaped(key shapedPath, pid int) bool { return p.shaped(key, pid, p.namespace) }

// StillShaped is Shaped for a path that was examined before: it may return an older answer, to stay within the time for
// reviews.
func (p *shapers) StillShaped(key shapedPath, pid int) bool { return p.shaped(key, pid, p.reviewed) }

// looker returns what is known of the namespace of a process.
type looker func(inode uint64, pid int, now time.Time) within

func (p *shapers) shaped(key shapedPath, pid int, look looker) bool {
	p.mu.Lock()
	defer p.mu.Unlock() // also while the kernel is asked: one caller at a time
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

// Any reports whether anything shapes that the connections of a process could cross, as far as can be seen.
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
	return n.outward || n.loopback // behind is about devices here
}

// path reports whether a path that begins in this namespace shapes.
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

// namespace returns what is known of the namespace of a process; nothing if inode is 0.
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

// reviewed is namespace, but returns an older answer while there is no time left for reviews.
func (p *shapers) reviewed(inode uint64, pid int, now time.Time) within {
	n, ok := p.namespaces[inode]
	if ok && now.Sub(n.at) < fresh || p.reviews.TokensAt(now) <= 0 {
		return n
	}
	n = p.namespace(inode, pid, now)
	p.reviews.ReserveN(now, int(min(time.Since(now), reviewAtOnce)))
	return n
}

// links examines the devices in the namespace of a process, which requires no privilege there. The kernel tells each
// device's root discipline, but not those below it. The namespace gets an ID here for that, as it does when a device
// leads into it.
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

// pairsShape reports whether a veth here whose other half is in the namespace shapes, or its bridge does.
func (p *shapers) pairsShape(id int) bool {
	return slices.ContainsFunc(p.here.links, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() == "veth" && a.NetNsID == id && (p.here.shaping[a.Index] || p.here.shaping[a.MasterIndex])
	})
}

// namespaceOf returns the network namespace of a process, and a live thread of it; 0 if unknown.
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

// leadsThroughShaper reports whether the device shapes by which this namespace routes the path.
func (p *shapers) leadsThroughShaper(k shapedPath) bool {
	routes, err := p.own.RouteGetWithOptions(k.Remote.WithZone("").AsSlice(), &netlink.RouteGetOptions{SrcAddr: k.Local.WithZone("").AsSlice()})
	return err == nil && len(routes) > 0 && p.here.shaping[routes[0].LinkIndex]
}

// devicesOf examines all devices of a namespace. Incoming packets may be redirected to an intermediate device (ifb)
// that shapes: if there is one, every device whose input can be redirected counts as shaping.
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

// isShaper reports whether a queueing discipline delays, drops or limits on purpose.
func isShaper(q netlink.Qdisc) bool {
	f, ok := q.(*netlink.Fq)
	return shapesByName(q.Type()) || ok && f.FlowMaxRate != 0 && f.FlowMaxRate != math.MaxUint32
}

func shapesByName(kind string) bool {
	return slices.Contains([]string{"tbf", "htb", "hfsc", "cbq", "netem", "cake"}, kind)
}

// attempts is how often to read a list that changes while it is read.
const attempts = 3

func again[T any](list func() (T, error)) (out T, err error) {
	for range attempts {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}
