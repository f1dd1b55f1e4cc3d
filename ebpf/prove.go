package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf/internal/proof"
)

// Connections of a device and family are native until a test connection has come through there (package proof), and
// again while it does not.

// LegWay says how far an unsuccessful proof got.
type LegWay = proof.Way

// The ways.
const (
	LegUnproved   = proof.Unproved
	LegUnroutable = proof.Unroutable
	LegOutput     = proof.Output
	LegInput      = proof.Input
	LegConfirm    = proof.Confirm
	LegSockmap    = proof.Sockmap
)

// BlockedLegs is a device on which legs do not reach applications.
type BlockedLegs struct {
	Device string
	IPv6   bool
	Way    LegWay
}

const (
	// proofInterval is how often a successful proof is repeated although nothing seems to have changed, since iptables
	// rules change without notice. A failed one is repeated after blockedInterval.
	proofInterval   = time.Minute
	blockedInterval = 10 * time.Second
)

// Priority is the SO_PRIORITY of the gateway's own sockets in the host's namespace, by which the programs recognise
// them. It is GATEWAY_PRIORITY of maps.h.
const Priority = 0x534d4750

// blockedBits are the flags of a device, by family.
var blockedBits = [2]uint32{deviceBlocked4, deviceBlocked6}

const (
	deviceBlocked4 = 2 // DEVICE_BLOCKED4 of maps.h
	deviceBlocked6 = 4
	stateProof     = 11 // FLOW_PROOF
)

// proveLegs proves the legs on every device that carries offers and tells the programs the result. It runs on a thread
// of the namespace.
func (d *Datapath) proveLegs() error {
	programs, err := proof.Sockops(d.cfg.CgroupPath)
	errs := []error{err}
	now, all := time.Now(), true
	for _, index := range d.offeringDevices() {
		for family := range 2 {
			way, made := d.proveOn(index, family == 1)
			errs = append(errs, d.noteProof(index, family, way))
			all = all && made
		}
	}
	d.provedAt, d.provedWith = time.Time{}, programs // repeat proofs that could not be made at the next tick
	if all {
		d.provedAt = now
	}
	return errors.Join(errs...)
}

// offeringDevices returns the devices that carry offers.
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

// proveOn makes a proof, and a second one if the first fails, so that one lost packet does not end offers. It returns
// "" for success. made is false if the proof could not be made, because this host lacks something at the moment.
func (d *Datapath) proveOn(index int, v6 bool) (way LegWay, made bool) {
	var failed proof.Error
	prover := proof.Prover{Netlink: d.nl, Entries: proofEntries{d}, Legs: d.cfg.Legs, Priority: Priority}
	for range 2 {
		err := prover.Prove(index, v6)
		if err == nil {
			return "", true
		}
		if !errors.As(err, &failed) {
			d.log.Debug("proof of legs", "ifindex", index, "ipv6", v6, "error", err)
			return LegUnproved, false
		}
		if failed.Way == LegUnproved || failed.Way == LegUnroutable {
			break
		}
	}
	return failed.Way, true
}

// noteProof stores the result of a proof and tells the programs.
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

// BlockedLegs returns the devices and families whose legs the host drops. A device without an address in a family is
// not among them.
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

// unproved reports whether a device that carries offers has appeared since the last proof.
func (d *Datapath) unproved() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		if dev.value.Flags&deviceOffer != 0 && dev.legs == [2]LegWay{LegUnproved, LegUnproved} {
			return true
		}
	}
	return false
}

// proofDue reports whether it is time for a proof.
func (d *Datapath) proofDue() bool {
	interval := proofInterval
	if len(d.BlockedLegs()) > 0 || d.unproved() {
		interval = blockedInterval
	}
	if time.Since(d.provedAt) > interval {
		return true
	}
	programs, err := proof.Sockops(d.cfg.CgroupPath)
	return err == nil && !slices.Equal(programs, d.provedWith)
}

// ProveAgain requests a proof of the legs soon, because a connection has failed on them. It does not block.
func (d *Datapath) ProveAgain() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

// proofEntries gives a proof access to the flow table.
type proofEntries struct{ d *Datapath }

var _ proof.Entries = proofEntries{}

func (e proofEntries) Enter(local, remote netip.AddrPort, ifindex int) error {
	k, err := Tuple{Local: local, Remote: remote}.key()
	if err != nil {
		return err
	}
	now := Now()
	v := smcgwFlow{Word: stateProof, OfferedAt: now, ChangedAt: now, Ifindex: uint64(ifindex)}
	if err := e.d.objs.Flows.Put(k, v); err != nil {
		return fmt.Errorf("entry: %w", err)
	}
	e.d.traces.leave(k)
	return nil
}

func (e proofEntries) Steps(local, remote netip.AddrPort) (proof.Steps, error) {
	k, err := Tuple{Local: local, Remote: remote}.key()
	if err != nil {
		return proof.Steps{}, err
	}
	var f smcgwFlow
	if err := e.d.objs.Flows.Lookup(k, &f); err != nil {
		return proof.Steps{}, fmt.Errorf("entry: %w", err)
	}
	step := func(n int) bool { return f.Word>>16>>n&1 != 0 } // enum proof_step
	return proof.Steps{Left: step(0), Answered: step(1), Confirmed: step(2)}, nil
}

func (e proofEntries) Forget(local, remote netip.AddrPort) {
	if k, err := (Tuple{Local: local, Remote: remote}).key(); err == nil {
		_ = e.d.objs.Flows.Delete(k)
	}
}

func (e proofEntries) Own(a netip.Addr) bool { return e.d.isOwn(a) }

// isOwn reports whether an address belongs to this namespace.
func (d *Datapath) isOwn(a netip.Addr) bool {
	k, ok := ownKey(a.AsSlice())
	var own smcgwOwn
	return ok && d.objs.Own.Lookup(k, &own) == nil
}
