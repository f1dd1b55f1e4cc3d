package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/cm"
)

// place is where an identifier is: its addresses, and our address in the table of the device.
type place struct {
	local, remote netip.AddrPort
	sgidIndex     uint8
}

// resolver is an identifier whose route is wanted.
type resolver struct {
	handle uint32
	do     func(command) error
	await  func(eventKind) error
}

// resolve finds the way to an address, from any of ours unless one is given.
func (r *resolver) resolve(local, remote netip.AddrPort) error {
	src, err := sockaddrOf(local)
	if err != nil {
		return err
	}
	dst, err := sockaddrOf(remote)
	if err != nil {
		return err
	}
	ms := uint32(resolveTimeout / time.Millisecond)
	if err := r.do(resolveAddr{id: r.handle, timeoutMS: ms, src: src, dst: dst}); err != nil {
		return err
	}
	if err := r.await(addrResolved); err != nil {
		return err
	}
	if err := r.do(resolveRoute{id: r.handle, timeoutMS: ms}); err != nil {
		return err
	}
	return r.await(routeResolved)
}

// resolve finds the way to an address.
func (d *identifier) resolve(ctx context.Context, local, remote netip.AddrPort) error {
	r := resolver{handle: d.handle, do: d.do, await: func(kind eventKind) error {
		_, err := d.await(ctx, kind)
		return err
	}}
	return r.resolve(local, remote)
}

// sockaddrOf finds the interface of a zone.
func sockaddrOf(a netip.AddrPort) (sockaddr, error) {
	zone := a.Addr().Zone()
	if zone == "" {
		return sockaddr{AddrPort: a}, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return sockaddr{AddrPort: a, scope: uint32(n)}, nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return sockaddr{}, fmt.Errorf("zone of %v: %w", a, err)
	}
	return sockaddr{AddrPort: a, scope: uint32(i.Index)}, nil
}

// addrs asks for the addresses of an identifier.
func (d *identifier) addrs() (addrAnswer, error) {
	answer, err := d.ask(query{d.handle, queryAddr})
	var a addrAnswer
	if err == nil {
		err = a.parse(answer)
	}
	return a, err
}

// where finds an identifier with a route in the tables of our device.
func (d *identifier) where() (place, error) {
	a, err := d.addrs()
	if err != nil {
		return place{}, err
	}
	answer, err := d.ask(query{d.handle, queryGID})
	if err != nil {
		return place{}, err
	}
	src, _, err := parseGIDs(answer)
	if err != nil {
		return place{}, err
	}
	i := verbs.GIDIndex(d.m.dev.Port().GIDs, src, 0)
	if i < 0 {
		return place{}, fmt.Errorf("%v: %w", a.src.Addr(), ErrOtherDevice)
	}
	return place{local: a.src, remote: a.dst, sgidIndex: uint8(i)}, nil
}

// connectQP moves a queue pair to RTS with the attributes that the kernel says. The kernel knows neither how soon
// receives are posted nor what the caller wants READs to be.
func (d *identifier) connectQP(p *cm.QPParams, w place) (verbs.QPAttr, error) {
	attr, err := d.qpAttr()
	if err != nil {
		return attr, err
	}
	attr.AH.SGIDIndex, attr.AH.Port = w.sgidIndex, 1
	attr.MinRNRTimer = p.MinRNRTimer
	attr.MaxDestRDAtomic, attr.MaxRDAtomic = p.ResponderResources, p.InitiatorDepth
	return attr, p.Connect(attr)
}

// qpAttr asks for the attributes of the steps to INIT, which tells the partition, to RTR and to RTS.
func (d *identifier) qpAttr() (verbs.QPAttr, error) {
	var steps [verbs.QPSRTS + 1]qpAttr
	for state, mask := range map[verbs.QPState]verbs.QPAttrMask{
		verbs.QPSInit: verbs.QPAttrPKeyIndex, verbs.QPSRTR: verbs.RTRMask, verbs.QPSRTS: verbs.RTSMask,
	} {
		answer, err := d.ask(initQPAttr{d.handle, state})
		if err == nil {
			err = steps[state].parse(answer)
		}
		if err != nil {
			return verbs.QPAttr{}, err
		}
		if missing := mask &^ steps[state].mask; missing != 0 {
			return verbs.QPAttr{}, fmt.Errorf("queue pair attributes %#x missing: %w", uint32(missing), ErrMalformed)
		}
	}
	attr := steps[verbs.QPSRTR].QPAttr
	attr.PKeyIndex = steps[verbs.QPSInit].PKeyIndex
	attr.Apply(&steps[verbs.QPSRTS].QPAttr, steps[verbs.QPSRTS].mask)
	return attr, nil
}

// Resolve asks the kernel for the path from an address of ours, or without one from any, to a peer's. A host without the
// kernel's manager is ErrAbsent; an address that no adapter reaches is a *EventError or *CommandError.
func Resolve(ctx context.Context, local, remote netip.Addr) (Path, error) {
	f, err := openFile()
	if err != nil {
		return Path{}, fmt.Errorf("path to %v: %w", remote, err)
	}
	p, err := resolveBy(ctx, f, local, remote)
	if err = errors.Join(err, f.close()); err != nil {
		return Path{}, fmt.Errorf("path to %v: %w", remote, err)
	}
	return p, nil
}

// resolveBy resolves without a manager: the caller's goroutine alone uses the kernel, so that it may be locked to a
// thread.
func resolveBy(ctx context.Context, k kernel, local, remote netip.Addr) (p Path, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*resolveTimeout)
	defer cancel()
	create := createID{uid: 1, space: cm.PortSpaceTCP, qp: verbs.QPTRC}
	answer := make([]byte, create.answerSize())
	if err := k.call(create, answer); err != nil {
		return p, err
	}
	r := resolver{
		handle: native.Uint32(answer),
		do:     func(c command) error { return k.call(c, nil) },
		await:  func(kind eventKind) error { return awaitFrom(ctx, k, kind) },
	}
	var src netip.AddrPort
	if local.IsValid() {
		src = netip.AddrPortFrom(local, 0)
	}
	if err := r.resolve(src, netip.AddrPortFrom(remote, 0)); err != nil {
		return p, err
	}
	q := query{r.handle, queryPath}
	answer = make([]byte, q.answerSize())
	if err := k.call(q, answer); err != nil {
		return p, err
	}
	if p, err = parsePath(answer); err != nil {
		return p, err
	}
	init := initQPAttr{r.handle, verbs.QPSInit}
	answer = make([]byte, init.answerSize())
	if err := k.call(init, answer); err != nil {
		return p, err
	}
	var attr qpAttr
	err = attr.parse(answer)
	p.PKeyIndex = attr.PKeyIndex
	return p, err
}

// awaitFrom waits for an event of the only identifier.
func awaitFrom(ctx context.Context, k kernel, kind eventKind) error {
	answer := make([]byte, eventSize)
	for {
		var ev event
		err := k.next(ctx, answer)
		if err == nil {
			err = ev.parse(answer)
		}
		switch {
		case err != nil:
			return err
		case ev.kind == kind:
			return nil
		}
		if err := ev.failure(); err != nil {
			return err
		}
	}
}
