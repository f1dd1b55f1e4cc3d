package ebpf

import (
	"errors"
	"fmt"
	"strings"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// objects are the loaded maps and programs.
type objects struct {
	counting
	carrying
	infiniband
}

// counting has what a datapath needs that only counts, and maps that then stay empty.
type counting struct {
	Flows *bpf.Map `ebpf:"smcgw_flows"`
	Peers *bpf.Map `ebpf:"smcgw_peers"`

	Passed  *bpf.Map `ebpf:"smcgw_passed"`
	Own     *bpf.Map `ebpf:"smcgw_own"`
	Devices *bpf.Map `ebpf:"smcgw_devices"`
	Control *bpf.Map `ebpf:"smcgw_control"`
	SetUps  *bpf.Map `ebpf:"smcgw_setups"`

	Seen            *bpf.Map `ebpf:"smcgw_seen"`
	Compared        *bpf.Map `ebpf:"smcgw_compared"`
	Datagrams       *bpf.Map `ebpf:"smcgw_dgrams"`
	DatagramNatives *bpf.Map `ebpf:"smcgw_dgram_natives"`
	DatagramPeers   *bpf.Map `ebpf:"smcgw_dgram_peers"`
	DatagramAsked   *bpf.Map `ebpf:"smcgw_dgram_asked"`

	Beat    *bpf.Map `ebpf:"smcgw_beat"`
	Native  *bpf.Map `ebpf:"smcgw_native"`
	Decided *bpf.Map `ebpf:"smcgw_decided"`
	Stats   *bpf.Map `ebpf:"smcgw_stats"`
	Events  *bpf.Map `ebpf:"smcgw_events"`
	Listen  *bpf.Map `ebpf:"smcgw_listen"`
	Served  *bpf.Map `ebpf:"smcgw_served"`
	Policy  *bpf.Map `ebpf:"smcgw_policy"`
	LPM4    *bpf.Map `ebpf:"smcgw_lpm4"`
	LPM6    *bpf.Map `ebpf:"smcgw_lpm6"`
	Ports   *bpf.Map `ebpf:"smcgw_ports"`
	UIDs    *bpf.Map `ebpf:"smcgw_uids"`
	Cgroups *bpf.Map `ebpf:"smcgw_cgroups"`

	Globals *bpf.Map `ebpf:".bss"` // smcgw_traces

	Sockops  *bpf.Program `ebpf:"smcgw_sockops"`
	Connect4 *bpf.Program `ebpf:"smcgw_connect4"`
	Connect6 *bpf.Program `ebpf:"smcgw_connect6"`
}

// carrying has the programs that touch packets.
type carrying struct {
	EgressL2  *bpf.Program `ebpf:"smcgw_eg_l2"`
	EgressL3  *bpf.Program `ebpf:"smcgw_eg_l3"`
	IngressL2 *bpf.Program `ebpf:"smcgw_in_l2"`
	IngressL3 *bpf.Program `ebpf:"smcgw_in_l3"`
	LegIn     *bpf.Program `ebpf:"smcgw_leg_in"`
	LegOut    *bpf.Program `ebpf:"smcgw_leg_eg"`
	AppIn     *bpf.Program `ebpf:"smcgw_app_in"`
	AppOut    *bpf.Program `ebpf:"smcgw_app_eg"`
	WireIn    *bpf.Program `ebpf:"smcgw_wire_in"`
	Lookup    *bpf.Program `ebpf:"smcgw_lookup"`
	CAS       *bpf.Program `ebpf:"smcgw_cas"`
}

// infiniband has the programs for IPoIB devices, loaded only with Config.InfiniBand.
type infiniband struct {
	EgressIB  *bpf.Program `ebpf:"smcgw_eg_ipoib"`
	IngressIB *bpf.Program `ebpf:"smcgw_in_ipoib"`
}

// Close closes all maps and programs.
func (o *objects) Close() error {
	var errs []error
	for _, m := range []*bpf.Map{
		o.Flows, o.Peers, o.Passed, o.Own, o.Devices, o.Control, o.SetUps, o.Beat, o.Native, o.Decided, o.Stats,
		o.Events, o.Seen, o.Compared, o.Listen, o.Served, o.Policy, o.LPM4, o.LPM6, o.Ports, o.UIDs, o.Cgroups,
		o.Datagrams, o.DatagramNatives, o.DatagramPeers, o.DatagramAsked, o.Globals,
	} {
		errs = append(errs, m.Close())
	}
	for _, p := range []*bpf.Program{
		o.Sockops, o.Connect4, o.Connect6, o.EgressL2, o.EgressL3, o.IngressL2, o.IngressL3,
		o.EgressIB, o.IngressIB, o.LegIn, o.LegOut, o.AppIn, o.AppOut, o.WireIn, o.Lookup, o.CAS,
	} {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// netnsCookie returns the cookie of the calling thread's namespace. Sockops needs it because it is called for all
// namespaces below its cgroup.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("namespace cookie: %w", err)
	}
	return c, nil
}

// maxNatives bounds the entries of native datagram tuples. An evicted tuple is decided again.
const maxNatives = 1 << 14

// Spec describes the programs and maps before their constants are set.
func Spec() (*bpf.CollectionSpec, error) { return loadSmcgw() }

// loadFirst loads maps and programs, and opens what lives as long as the datapath.
func (d *Datapath) loadFirst() (err error) {
	if err := d.load(nil); err != nil {
		return err
	}
	if d.traces, err = newTraces(d.objs, d.tracesAt); err != nil {
		return err
	}
	if err := d.putRetired(d.retired); err != nil {
		return err
	}
	if d.beat, err = d.objs.Beat.Memory(); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	d.loaded, d.loadedAt = time.Now(), Now()
	d.events, err = ringbuf.NewReader(d.objs.Events)
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	return nil
}

// load sets the constants and loads programs and maps. It takes the maps that survive from before, unless that is nil.
func (d *Datapath) load(before *objects) error {
	spec, err := d.cfg.parse()
	if err != nil {
		return fmt.Errorf("object: %w", err)
	}
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	for name, v := range map[string]any{
		"generation": uint32(d.cfg.Generation), "app_ifindex": uint32(d.appIndex), "wire_ifindex": uint32(d.wireIndex), "leg_ifindex": uint32(d.legIndex()),
		"netns_cookie": cookie, "counting": uint8(bit(d.counting)), "datagram_port": wirePort(d.cfg.DatagramPort),
		"has_xfrm":   uint8(bit(features.HaveProgramHelper(bpf.SchedCLS, asm.FnSkbGetXfrmState) == nil)),
		"cookie_key": newCookieKey(), "answer_rate": uint32(d.cfg.answers),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("constant %s: %w", name, err)
		}
	}
	spec.Maps["smcgw_flows"].MaxEntries = uint32(d.cfg.MaxFlows)
	spec.Maps["smcgw_beat"].Flags |= unix.BPF_F_MMAPABLE
	spec.Maps["smcgw_peers"].MaxEntries = uint32(d.cfg.MaxPeers)
	spec.Maps["smcgw_passed"].MaxEntries = uint32(d.cfg.MaxPeers)
	spec.Maps["smcgw_dgrams"].MaxEntries = uint32(d.cfg.MaxDatagrams)
	spec.Maps["smcgw_dgram_natives"].MaxEntries = min(uint32(d.cfg.MaxDatagrams), maxNatives)
	spec.Maps["smcgw_dgram_peers"].MaxEntries = uint32(d.cfg.MaxPeers)
	if d.cfg.maxOwn > 0 {
		spec.Maps["smcgw_own"].MaxEntries, spec.Maps["smcgw_devices"].MaxEntries = uint32(d.cfg.maxOwn), uint32(d.cfg.maxOwn)
	}
	objs := new(objects)
	want := any(objs)
	switch {
	case d.counting:
		want = &objs.counting
		for _, name := range []string{"smcgw_flows", "smcgw_dgrams", "smcgw_dgram_natives", "smcgw_dgram_peers"} {
			spec.Maps[name].MaxEntries = 16 // stays empty
		}
	case !d.cfg.InfiniBand:
		want = &struct {
			*counting
			*carrying
		}{&objs.counting, &objs.carrying}
	}
	options := &bpf.CollectionOptions{Cache: d.cfg.kernelTypes}
	if before != nil {
		options.MapReplacements = before.shared()
	}
	if err := spec.LoadAndAssign(want, options); err != nil {
		return verifierError(err)
	}
	d.objs = objs
	d.tracesAt, d.retiredAt = spec.Variables["smcgw_traces"].Offset, int64(spec.Variables["smcgw_retired"].Offset)
	return nil
}

// verifierError keeps the end of the verifier's log, which says what the verifier rejected.
func verifierError(err error) error {
	var v *bpf.VerifierError
	if !errors.As(err, &v) {
		return fmt.Errorf("load: %w", err)
	}
	tail := v.Log[max(0, len(v.Log)-8):]
	return fmt.Errorf("load: %w: %s", err, strings.Join(tail, "; "))
}

// attachSteering attaches what must be in place before the first packet is steered.
func (d *Datapath) attachSteering() error {
	l, err := link.AttachNetNs(int(d.cfg.Legs.File().Fd()), d.objs.Lookup)
	if err != nil {
		return fmt.Errorf("sk_lookup: %w", err)
	}
	d.steering = append(d.steering, l)
	if err := d.attachPair(); err != nil {
		return err
	}
	for _, a := range []struct {
		prog    *bpf.Program
		ifindex int
		at      bpf.AttachType
	}{
		{d.objs.AppIn, d.appIndex, bpf.AttachTCXIngress},
		{d.objs.AppOut, d.appIndex, bpf.AttachTCXEgress},
		{d.objs.WireIn, d.wireIndex, bpf.AttachTCXIngress},
	} {
		l, err := attachTCX(a.prog, a.ifindex, a.at, link.Head())
		if err != nil {
			return err
		}
		d.steering = append(d.steering, l)
	}
	return nil
}

// attachTCX attaches a program to a device, at the anchor's position among the programs there.
func attachTCX(prog *bpf.Program, ifindex int, at bpf.AttachType, where link.Anchor) (link.Link, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: at, Anchor: where})
	if err != nil {
		return nil, fmt.Errorf("tcx on interface %d: %w", ifindex, err)
	}
	return l, nil
}

// attached is a program and its attach point.
type attached struct {
	prog *bpf.Program
	at   bpf.AttachType
}

// offers returns the programs of offering in the order in which they are attached.
func (o *objects) offers() []attached {
	return []attached{
		{o.Connect4, bpf.AttachCGroupInet4Connect},
		{o.Connect6, bpf.AttachCGroupInet6Connect},
		{o.Sockops, bpf.AttachCGroupSockOps},
	}
}

// detachOffering undoes attachOffering.
func (d *Datapath) detachOffering() error {
	err := closeLinks(d.offering)
	d.offering = nil
	return err
}

// attachOffering attaches the connect programs and, last of all, sockops.
func (d *Datapath) attachOffering() error {
	for _, a := range d.objs.offers() {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: d.cfg.CgroupPath, Attach: a.at, Program: a.prog})
		if errors.Is(err, unix.E2BIG) {
			return fmt.Errorf("%s: 64 programs are attached to %s already, as many as the kernel takes: other gateways or agents of this machine (bpftool cgroup tree)", a.at, d.cfg.CgroupPath)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", a.at, err)
		}
		d.offering = append(d.offering, l)
	}
	return nil
}

// walks bounds how often a map is walked again. Only on a host that does nothing else would every single one of them be
// disturbed by a change.
const walks = 32

// deleteWhere deletes the entries whose key matches and returns their number. It collects the keys first, because a
// walk that deletes as it goes starts over. It repeats a walk that others have cut short, as happens in a full LRU map.
func deleteWhere[K any](m *bpf.Map, match func(K) bool) (n int, err error) {
	for range walks {
		var keys []K
		if keys, err = keysWhere(m, match); err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
			return n, err
		}
		for _, k := range keys {
			switch err := m.Delete(k); {
			case err == nil:
				n++
			case !errors.Is(err, bpf.ErrKeyNotExist):
				return n, err
			}
		}
		if err == nil {
			break
		}
	}
	return n, err
}

// dropWhere is deleteWhere without the count.
func dropWhere[K any](m *bpf.Map, match func(K) bool) error {
	_, err := deleteWhere(m, match)
	return err
}

// keysWhere returns the matching keys, as far as the walk got.
func keysWhere[K any](m *bpf.Map, match func(K) bool) (keys []K, err error) {
	var k K
	value := make([]byte, m.ValueSize())
	it := m.Iterate()
	for it.Next(&k, &value) {
		if match(k) {
			keys = append(keys, k)
		}
	}
	return keys, it.Err()
}
