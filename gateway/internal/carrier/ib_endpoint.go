package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

var (
	// errOtherPath means that the queue pair named by a peer is not at the end of the path to
	// the peer. It is an ErrNoPath, since the path may have changed.
	errOtherPath = fmt.Errorf("queue pair at the end of another path: %w", ErrNoPath)
	// errPartition means that the partitions of the two ends cannot exchange packets.
	errPartition = errors.New("queue pairs of partitions apart")
)

// fullMember is bit 15 of a P_Key: a full member reaches all members of the partition, others
// reach only full members (IBTA vol. 1, 10.9.1.1).
const fullMember = 0x8000

// checkEndpoint returns why a queue pair named by a peer must not be used: the path to the
// peer leads elsewhere, or the partitions of own (this end's P_Key) and of the peer's P_Key
// cannot exchange packets. With a router in between, the LID is the router's, so it is not
// compared.
func checkEndpoint(p *rdmacm.Path, own uint16, at *negotiate.IBEndpoint) error {
	switch {
	case p.DGID != at.GID:
		return fmt.Errorf("%v instead of %v: %w", verbs.GID(at.GID), p.DGID, errOtherPath)
	case !p.Global() && p.DLID != at.LID:
		return fmt.Errorf("LID %#x instead of %#x: %w", at.LID, p.DLID, errOtherPath)
	case (own^at.PKey)&^fullMember != 0, (own|at.PKey)&fullMember == 0:
		return fmt.Errorf("P_Keys %#04x and %#04x: %w", own, at.PKey, errPartition)
	}
	return nil
}

// pathAddress returns the address vector by which a port with this LID and GID index reaches
// the end of a path. global: packets of the port have a global header on every path
// ([verbs.PortAttr]).
func pathAddress(p *rdmacm.Path, lid uint16, gid uint8, global bool) verbs.AHAttr {
	a := verbs.AHAttr{DLID: p.DLID, SL: p.SL, SrcPathBits: uint8(p.SLID - lid), Port: 1}
	if global || p.Global() {
		a.DGID, a.SGIDIndex, a.FlowLabel, a.HopLimit, a.TrafficClass = p.DGID, gid, p.FlowLabel, p.HopLimit, p.TrafficClass
	}
	return a
}

// samePath reports whether packets take both paths alike.
func samePath(a, b rdmacm.Path) bool {
	a.Rate, a.PacketLifetime = b.Rate, b.PacketLifetime
	return a == b
}

const (
	// maxPathBits is the maximum number of LIDs of a port, given by a mask of 7 bits.
	maxPathBits = 1 << 7
	// maxUnicast is the highest unicast LID.
	maxUnicast = 0xbfff
)

// beginsAt reports whether a path begins at the port with this GID and LID. A LID of 0 means
// that the administrator has not assigned one yet.
func beginsAt(p *rdmacm.Path, gid verbs.GID, lid uint16) bool {
	return p.SGID == gid && lid > 0 && lid <= maxUnicast && p.SLID-lid < maxPathBits
}

// checkPartition returns an error if an entry of a port's partition table is empty: the
// administrator has revoked the partition since the path was resolved.
func checkPartition(pkey uint16) error {
	if pkey&^fullMember == 0 {
		return fmt.Errorf("P_Key %#04x: %w", pkey, ErrNoPath)
	}
	return nil
}

// subnet gives access to the InfiniBand subnets that the host is on.
type subnet interface {
	// gidOf returns the GID of the port of an IPoIB network device, or zero if it is not one.
	gidOf(ifindex int) (verbs.GID, error)
	// resolve resolves the path between two IPoIB addresses.
	resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)
}

// kernelSubnets asks the kernel of this host.
type kernelSubnets struct{}

// gidOf implements subnet.
func (kernelSubnets) gidOf(ifindex int) (verbs.GID, error) { return sysfs.IPoIB(ifindex) }

// resolve implements subnet.
func (kernelSubnets) resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	return rdmacm.Resolve(ctx, local, remote)
}

const (
	// pathKept is how long a path is cached unless an event invalidates it earlier: the
	// administrator tells a host about changes at its own port, but not about those at its
	// peers'. pathMissingKept is the same for a failed query.
	pathKept        = 10 * time.Second
	pathMissingKept = time.Second
	// pathsMost bounds the cached answers; pathsAskedMost bounds the queries in progress,
	// each of which holds a thread.
	pathsMost      = 1024
	pathsAskedMost = 16
)

// pathResolver resolves the path between two addresses of the IP network on the subnet:
// [rdmacm.Resolve].
type pathResolver func(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)

// ibPaths caches the paths to peers through InfiniBand subnets, keyed by the addresses of
// connections. Its methods may be called from any goroutine.
//
// The addresses of a TCP connection do not name a queue pair on InfiniBand: packets follow LIDs,
// which the subnet administrator assigns and revokes, and only within a partition. A path is
// what the kernel's connection manager answers for the addresses of the connection
// (verbs/hw/rdmacm). What a peer says about itself is not trusted unless it agrees with that;
// otherwise a peer could make this host send to a third one (docs/PROTOCOL.md "Carrier proof").
//
// An administrator may be slow or silent. So a query continues after its waiters have given up,
// and later connections find its answer.
type ibPaths struct {
	resolve pathResolver
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	mu    sync.Mutex // guards everything below
	known map[ibEnds]*ibAnswer
	asked int // queries in progress
}

// ibEnds are the addresses of a connection.
type ibEnds struct{ local, remote netip.Addr }

// ibAnswer is a query and, once it is done, its answer.
type ibAnswer struct {
	done chan struct{} // closed when the other fields are set
	path rdmacm.Path
	err  error
	at   time.Time
}

// newIBPaths returns an empty cache. It must be closed with close.
func newIBPaths(resolve pathResolver) *ibPaths {
	p := &ibPaths{resolve: resolve, known: map[ibEnds]*ibAnswer{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// to returns the path between two addresses. It waits for the answer until ctx ends. The
// error is an ErrNoPath if there is no path, or no answer yet.
func (p *ibPaths) to(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	a, err := p.ask(ibEnds{local, remote})
	if err != nil {
		return rdmacm.Path{}, err
	}
	select {
	case <-a.done:
		return a.path, a.err
	case <-ctx.Done():
	}
	return rdmacm.Path{}, fmt.Errorf("path to %v: no answer of the subnet administrator yet: %w", remote, ErrNoPath)
}

// ask returns the cached answer or the query in progress, or starts a query.
func (p *ibPaths) ask(between ibEnds) (*ibAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.known[between]
	switch {
	case a != nil && a.holds(time.Now()):
		return a, nil
	case p.ctx.Err() != nil:
		return nil, fmt.Errorf("%v: closed: %w", between.remote, ErrNoPath)
	case p.asked >= pathsAskedMost:
		return nil, fmt.Errorf("%v: %d paths are asked for: %w", between.remote, pathsAskedMost, ErrNoPath)
	case len(p.known) >= pathsMost:
		p.known = map[ibEnds]*ibAnswer{}
	}
	a = &ibAnswer{done: make(chan struct{})}
	p.known[between] = a
	p.asked++
	p.work.Go(func() { p.find(between, a) })
	return a, nil
}

// holds reports whether the query is in progress or its answer is still valid.
func (a *ibAnswer) holds(now time.Time) bool {
	select {
	case <-a.done:
	default:
		return true
	}
	kept := pathKept
	if a.err != nil {
		kept = pathMissingKept
	}
	return now.Sub(a.at) < kept
}

// find queries the kernel. It locks the thread because the kernel accepts commands only from
// the thread that opened its device.
func (p *ibPaths) find(between ibEnds, a *ibAnswer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path, err := p.resolve(p.ctx, between.local, between.remote)
	if err != nil {
		err = fmt.Errorf("%w: %w", err, ErrNoPath)
	}
	a.path, a.err, a.at = path, err, time.Now()
	close(a.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked--
}

// forget drops the cache because the subnet has changed. Queries in progress still answer
// their waiters but are not cached.
func (p *ibPaths) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = map[ibEnds]*ibAnswer{}
}

// doubt drops the path between two addresses: the peer says that it is at the end of a
// different one.
func (p *ibPaths) doubt(local, remote netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, ibEnds{local, remote})
}

// close cancels the queries in progress and waits for them.
func (p *ibPaths) close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.work.Wait()
}
