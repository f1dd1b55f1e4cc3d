package kernel

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// place describes the ends of an identifier: its addresses, and the index of ours in the device's GID table.
type place struct {
	local, remote netip.AddrPort
	sgidIndex     uint8
}

// resolve resolves the address and the route.
func (d *identifier) resolve(ctx context.Context, local, remote netip.AddrPort) error {
	r := rdmacm.Resolver{Handle: d.handle, Do: d.do, Await: func(kind rdmacm.EventKind) error {
		_, err := d.await(ctx, kind)
		return err
	}}
	return r.Resolve(local, remote)
}

// addrs queries the addresses of an identifier.
func (d *identifier) addrs() (addrAnswer, error) {
	answer, err := d.ask(rdmacm.Query{ID: d.handle, Option: rdmacm.QueryAddr})
	var a addrAnswer
	if err == nil {
		err = a.parse(answer)
	}
	return a, err
}

// where returns the place of an identifier that has a route.
func (d *identifier) where() (place, error) {
	a, err := d.addrs()
	if err != nil {
		return place{}, err
	}
	answer, err := d.ask(rdmacm.Query{ID: d.handle, Option: rdmacm.QueryGID})
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

// connectQP moves a queue pair to RTS with the kernel's attributes, except those that the kernel does not know: how
// soon receives are posted, and the caller's limits on READs.
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

// qpAttr queries the attributes of the steps to INIT, which has the partition, to RTR and to RTS.
func (d *identifier) qpAttr() (verbs.QPAttr, error) {
	var steps [verbs.QPSRTS + 1]rdmacm.QPAttr
	for state, mask := range map[verbs.QPState]verbs.QPAttrMask{
		verbs.QPSInit: verbs.QPAttrPKeyIndex, verbs.QPSRTR: verbs.RTRMask, verbs.QPSRTS: verbs.RTSMask,
	} {
		answer, err := d.ask(rdmacm.InitQPAttr{ID: d.handle, State: state})
		if err == nil {
			err = steps[state].Parse(answer)
		}
		if err != nil {
			return verbs.QPAttr{}, err
		}
		if missing := mask &^ steps[state].Mask; missing != 0 {
			return verbs.QPAttr{}, fmt.Errorf("queue pair attributes %#x missing: %w", uint32(missing), rdmacm.ErrMalformed)
		}
	}
	attr := steps[verbs.QPSRTR].QPAttr
	attr.PKeyIndex = steps[verbs.QPSInit].PKeyIndex
	attr.Apply(&steps[verbs.QPSRTS].QPAttr, steps[verbs.QPSRTS].Mask)
	return attr, nil
}
