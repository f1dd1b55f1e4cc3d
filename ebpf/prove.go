package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
)

// A connection of our own shows whether legs reach applications on a device: it
// takes the way of a carried client's, from a socket of the host through routing,
// netfilter and the device's program to a socket in the namespace of the legs and
// back. Until it has come through, and while it does not, connections on that device
// and family are native.

// LegWay says how far a proof has come that has not come through.
type LegWay string

// The ways.
const (
	// LegUnproved: there is no address to prove it from yet.
	LegUnproved LegWay = "unproved"
	// LegUnroutable: the host has no route.
	LegUnroutable LegWay = "unroutable"
	// LegOutput: the SYN was dropped before it left: by a rule in output or
	// postrouting.
	LegOutput LegWay = "output"
	// LegInput: the answer was dropped before it reached the socket: by a rule in
	// ingress, prerouting or input, or by the reverse-path filter.
	LegInput LegWay = "input"
	// LegConfirm: what follows the answer was dropped.
	LegConfirm LegWay = "established"
)

// BlockedLegs is a device on which legs do not reach applications.
type BlockedLegs struct {
	Device string
	IPv6   bool
	Way    LegWay
}

// wayError is the error of a proof that did not come through.
type wayError struct{ way LegWay }

func (e wayError) Error() string { return "leg not proved: " + string(e.way) }

const (
	// proofTimeout bounds each step of a proof, which takes less than a millisecond
	// where nothing drops it.
	proofTimeout = time.Second
	// proofInterval is how often what is known is proved again although nothing seems
	// to have changed: rules of iptables change in silence. What is blocked is looked at
	// again after blockedInterval.
	proofInterval   = time.Minute
	blockedInterval = 10 * time.Second
)

// Priority is the SO_PRIORITY of the gateway's own sockets in the host's namespace, by
// which the programs know them. It is GATEWAY_PRIORITY of maps.h.
const Priority = 0x534d4750

// The bits of a device's flags, by family.
var blockedBits = [2]uint32{deviceBlocked4, deviceBlocked6}

const (
	deviceBlocked4 = 2 // DEVICE_BLOCKED4 of maps.h
	deviceBlocked6 = 4
	stateProof     = 11 // FLOW_PROOF
)

// proveLegs proves the legs on every device that carries offers and tells the
// programs. It runs on a thread of the namespace.
func (d *Datapath) proveLegs() error {
	var errs []error
	for _, index := range d.offeringDevices() {
		for family := range 2 {
			way := d.proveOn(index, family == 1)
			errs = append(errs, d.noteProof(index, family, way))
		}
	}
	d.provedAt = time.Now()
	return errors.Join(errs...)
}

// offeringDevices lists the devices that carry offers.
func (d *Datapath) offeringDevices() (list []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for index, dev := range d.devices {
		if dev.value.Flags&deviceOffer != 0 {
			list = append(list, index)
		}
	}
	return list
}

// proveOn makes a proof, and another one where the first has failed: what is known
// is not given up for one packet. It returns "" for one that came through.
func (d *Datapath) proveOn(index int, v6 bool) LegWay {
	var failed wayError
	for range 2 {
		err := d.prove(index, v6)
		if err == nil {
			return ""
		}
		if !errors.As(err, &failed) {
			d.log.Debug("proof of legs", "ifindex", index, "ipv6", v6, "error", err)
			return LegUnproved
		}
		if failed.way == LegUnproved || failed.way == LegUnroutable {
			break
		}
	}
	return failed.way
}

// noteProof tells the programs what came of a proof.
func (d *Datapath) noteProof(index, family int, way LegWay) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, ok := d.devices[index]
	if !ok {
		return nil
	}
	was := dev.legs[family]
	dev.legs[family] = way
	v := dev.value
	v.Flags &^= blockedBits[family]
	if way != "" {
		v.Flags |= blockedBits[family]
	}
	if was != way {
		d.logProof(dev.name, family == 1, was, way)
	}
	if v == dev.value {
		return nil
	}
	if err := d.objs.Devices.Put(uint32(index), v); err != nil {
		return fmt.Errorf("device %s: %w", dev.name, err)
	}
	dev.value = v
	return nil
}

func (d *Datapath) logProof(device string, v6 bool, was, way LegWay) {
	switch way {
	case "":
		d.log.Debug("legs proved", "device", device, "ipv6", v6)
	case LegUnproved:
		d.log.Debug("legs not proved yet", "device", device, "ipv6", v6)
	default:
		d.log.Warn("legs blocked: connections are native", "device", device, "ipv6", v6, "at", way, "before", was)
	}
}

// BlockedLegs lists the devices and families whose legs the host drops. What has no
// address is not among them.
func (d *Datapath) BlockedLegs() (list []BlockedLegs) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		for family, way := range dev.legs {
			if dev.value.Flags&deviceOffer != 0 && way != "" && way != LegUnproved && way != LegUnroutable {
				list = append(list, BlockedLegs{Device: dev.name, IPv6: family == 1, Way: way})
			}
		}
	}
	return list
}

// proofDue reports whether it is time for a proof.
func (d *Datapath) proofDue() bool {
	interval := proofInterval
	if len(d.BlockedLegs()) > 0 {
		interval = blockedInterval
	}
	return time.Since(d.provedAt) > interval
}

// ProveAgain has the legs proved soon: a connection has failed on them. It does not
// wait.
func (d *Datapath) ProveAgain() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

// proof is one connection between a socket of the host and one of the legs'
// namespace.
type proof struct {
	d        *Datapath
	ends     proofEnds
	key      smcgwFlowKey
	app      int // the host's socket
	listener int
	leg      int
}

// prove makes one on a device. The error is an wayError where it did not come through.
func (d *Datapath) prove(index int, v6 bool) error {
	ends, err := d.proofEnds(index, v6)
	if err != nil {
		return err
	}
	defer ends.forget()
	p := &proof{d: d, ends: ends, app: -1, listener: -1, leg: -1}
	defer p.close()
	if err := p.open(v6); err != nil {
		return err
	}
	return p.run()
}

// open makes both sockets and the entry that leads from one to the other.
func (p *proof) open(v6 bool) error {
	made, err := p.d.cfg.Legs.Sockets(v6, 1)
	if err != nil {
		return err
	}
	p.listener = made[0]
	if err := legs.SetHops(p.listener, v6, legs.Farthest); err != nil {
		return err
	}
	far, err := bound(p.listener, p.ends.remote)
	if err != nil {
		return err
	}
	if err := unix.Listen(p.listener, 1); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	if p.app, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.BindToDevice(p.app, p.ends.device); err != nil {
		return fmt.Errorf("bind to %s: %w", p.ends.device, err)
	}
	if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_PRIORITY, Priority); err != nil {
		return fmt.Errorf("priority: %w", err)
	}
	near, err := bound(p.app, p.ends.local)
	if err != nil {
		return err
	}
	return p.enter(Tuple{Local: near, Remote: far})
}

// enter makes the entry and begins to connect.
func (p *proof) enter(t Tuple) (err error) {
	if p.key, err = t.key(); err != nil {
		return err
	}
	now := monotonic()
	v := smcgwFlow{Word: stateProof, OfferedAt: now, ChangedAt: now, Ifindex: uint32(p.ends.index)}
	if err := p.d.objs.Flows.Put(p.key, v); err != nil {
		return fmt.Errorf("entry: %w", err)
	}
	if err := p.d.traces.leave(p.key); err != nil {
		return err
	}
	err = unix.Connect(p.app, sockaddrOf(t.Remote))
	switch {
	case err == nil, errors.Is(err, unix.EINPROGRESS):
		return nil
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETDOWN):
		return wayError{LegUnroutable}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES): // dropped by a rule, which the caller is told
		return wayError{LegOutput}
	default:
		return fmt.Errorf("connect: %w", err)
	}
}

// run waits for the connection and for a byte each way.
func (p *proof) run() error {
	if !ready(p.app, unix.POLLOUT) || !ready(p.listener, unix.POLLIN) {
		return p.stuck()
	}
	if code, err := unix.GetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return p.stuck()
	}
	var err error
	if p.leg, _, err = unix.Accept4(p.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	for _, way := range [][2]int{{p.app, p.leg}, {p.leg, p.app}} {
		if _, err := unix.Write(way[0], []byte{'?'}); err != nil || !ready(way[1], unix.POLLIN) {
			return p.stuck()
		}
		if n, err := unix.Read(way[1], make([]byte, 1)); n != 1 || err != nil {
			return p.stuck()
		}
	}
	return nil
}

// stuck says how far the connection came.
func (p *proof) stuck() error {
	var f smcgwFlow
	if err := p.d.objs.Flows.Lookup(p.key, &f); err != nil {
		return fmt.Errorf("entry: %w", err)
	}
	steps := f.Syn // enum proof_step
	switch {
	case steps[0] == 0:
		return wayError{LegOutput}
	case steps[2] == 0:
		return wayError{LegInput}
	default:
		return wayError{LegConfirm}
	}
}

// close ends the connection by a reset, as every leg, and forgets it.
func (p *proof) close() {
	for _, fd := range []int{p.leg, p.listener, p.app} {
		if fd < 0 {
			continue
		}
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
	if p.key.Family != 0 {
		_ = p.d.objs.Flows.Delete(p.key)
	}
}

// ready waits until a socket can be read or written.
func ready(fd int, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for until := time.Now().Add(proofTimeout); ; {
		n, err := unix.Poll(fds, max(0, int(time.Until(until).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1 && fds[0].Revents&events != 0
	}
}

// bound binds a socket to an address and returns it with the port that was free.
func bound(fd int, a netip.Addr) (netip.AddrPort, error) {
	if err := unix.Bind(fd, sockaddrOf(netip.AddrPortFrom(a, 0))); err != nil {
		return netip.AddrPort{}, fmt.Errorf("bind to %v: %w", a, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("own address: %w", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(a, uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(a, uint16(sa.Port)), nil
	default:
		return netip.AddrPort{}, errors.New("own address of another family")
	}
}

func sockaddrOf(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
