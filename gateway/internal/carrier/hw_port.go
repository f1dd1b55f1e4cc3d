package carrier

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
)

const (
	// routeAsked is how long the kernel's answer about a route is cached; routesMost bounds
	// the cached answers.
	routeAsked = time.Second
	routesMost = 1024
)

// routeCache caches the network device the host sends through. The zero value is empty.
type routeCache map[[2]netip.Addr]route

type route struct {
	ifindex int   // 0: unknown, or none of the gateway's
	err     error // why the host does not tell
	asked   time.Time
}

// routeOf returns the network device through which the host sends from one address to
// another.
func (h *Hardware) routeOf(from, to netip.Addr) route {
	k, now := [2]netip.Addr{from, to}, time.Now()
	h.mu.Lock()
	by, ok := h.routes[k]
	h.mu.Unlock()
	if h.env.Route == nil || ok && now.Sub(by.asked) < routeAsked {
		return by
	}
	ifindex, err := h.env.Route(from, to)
	by = route{ifindex: ifindex, asked: now}
	if err != nil {
		h.env.Log.Debug("route", "from", from, "to", to, "error", err)
		by.ifindex = 0
	}
	if errors.As(err, new(syscall.Errno)) {
		by.err = err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.routes == nil || len(h.routes) >= routesMost {
		h.routes = routeCache{}
	}
	h.routes[k] = by
	return by
}

// portOf returns the adapter that has the local address on the network device through which
// the host reaches the remote one, and the index of its GID in the adapter's table. The table
// has one entry per address, type and network device.
func (h *Hardware) portOf(local, remote netip.Addr) (a *adapter, index uint8, gid verbs.GIDEntry, err error) {
	open, by := h.open(), route{}
	if !h.OffersAtOnce(nil) {
		by = h.routeOf(local, remote)
	}
	own, err := h.net.gidOf(local, by)
	if err != nil {
		return nil, 0, gid, err
	}
	for _, a := range open {
		port := a.port.Load()
		at := verbs.GIDIndex(port.GIDs, own, by.ifindex)
		if at < 0 {
			continue
		}
		if a.isLeaving() {
			return nil, 0, gid, fmt.Errorf("%s: %w", a.name, ErrNoDevice)
		}
		if port.State != verbs.PortActive {
			return nil, 0, gid, fmt.Errorf("%s: port is %v: %w", a.name, port.State, ErrNoDevice)
		}
		return a, uint8(at), port.GIDs[at], nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, d := range h.left {
		never := d.port.GIDs == nil && h.layer == verbs.LinkLayerInfiniBand && own != verbs.GID{} // never opened
		if never || verbs.GIDIndex(d.port.GIDs, own, by.ifindex) >= 0 {
			return nil, 0, gid, fmt.Errorf("%s: %s: %w", name, d.why, ErrNoDevice)
		}
	}
	return nil, 0, gid, fmt.Errorf("%v: %w", local, ErrNoAdapter)
}

// explain counts refusals of memory by an adapter, and notes for operators those caused by a
// limit that they can raise.
func (a *adapter) explain(err error) error {
	if err == nil {
		a.refusal.Store(nil)
		return nil
	}
	if !errors.Is(err, verbs.ErrNoMemory) && !errors.Is(err, unix.ENOMEM) {
		return err
	}
	a.count(func(st *hwStats) { st.RefusedMemory++ })
	if !errors.Is(err, hw.ErrMemlock) {
		return err
	}
	text := err.Error()
	if before := a.refusal.Swap(&text); before == nil {
		a.env.Log.Warn("RDMA adapter without memory", "device", a.name, "error", err)
	}
	return err
}

// Devices implements Provider.
func (h *Hardware) Devices() (list []report.DeviceInfo) {
	h.mu.Lock() // until the end: an adapter dropped meanwhile must be counted once
	defer h.mu.Unlock()
	listed := map[string]bool{} // an adapter that is leaving is also still open
	for _, a := range h.adapters {
		list, listed[a.name] = append(list, a.describe()), true
	}
	for name, d := range h.left {
		if listed[name] {
			continue
		}
		info := missing(h.kind, d.state, d.why)
		info.Name = name
		list = append(list, info)
	}
	for i := range list {
		h.past.Sum(&list[i])
	}
	slices.SortFunc(list, func(a, b report.DeviceInfo) int { return strings.Compare(a.Name, b.Name) })
	if len(list) == 0 {
		list = append(list, missing(h.kind, report.DeviceAbsent, fmt.Sprintf("this host has no RDMA adapter whose link layer is %v", h.layer)))
	}
	return list
}

// describe returns what operators see of the adapter.
func (a *adapter) describe() report.DeviceInfo {
	info := describeDevice(a.name, a.kind, a.dev.Attr(), *a.port.Load(), a.dev.Counters())
	addStats(&info, a.snapshot())
	if text := a.refusal.Load(); text != nil {
		info.State, info.Error = report.DeviceFailed, *text
	}
	if a.calls.Silent() {
		info.State, info.Error = report.DeviceFailed, loop.ErrNoAnswer.Error()
	}
	return info
}

// snapshot returns the current counters.
func (a *adapter) snapshot() hwStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := a.stats
	st.QPs, st.CQs, st.Peers = a.pairs, len(a.lanes.All()), len(a.peers)
	for _, p := range a.peers {
		for i := range p.pools {
			st.Pooled += len(p.pools[i].ready)
		}
	}
	return st
}
