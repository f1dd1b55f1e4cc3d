package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/inspect"
)

// Neighbour is what a datapath has to know of another one in its namespace, whose
// connections go on while it takes the new ones (docs/ARCHITECTURE.md "Two
// gateways side by side"). The two share nothing: each has programs, maps, devices
// and a namespace of legs of its own.
type Neighbour struct {
	// Generation is that of its devices.
	Generation int `json:"generation"`
	// AppIndex is the interface of its A; 0: it carries nothing.
	AppIndex int `json:"app_ifindex"`
	// Programs are the ids of its wire programs. Ours come behind them.
	Programs WirePrograms `json:"programs"`
}

// WirePrograms are the ids of the programs on wire devices: with and without a
// link header.
type WirePrograms struct {
	InL2  uint32 `json:"in_l2"`
	InL3  uint32 `json:"in_l3"`
	OutL2 uint32 `json:"out_l2"`
	OutL3 uint32 `json:"out_l3"`
}

// of returns the id of the neighbour's program that does the same as ours.
func (w WirePrograms) of(o *objects, ours *bpf.Program) bpf.ProgramID {
	switch ours {
	case o.IngressL2:
		return bpf.ProgramID(w.InL2)
	case o.IngressL3:
		return bpf.ProgramID(w.InL3)
	case o.EgressL2:
		return bpf.ProgramID(w.OutL2)
	default:
		return bpf.ProgramID(w.OutL3)
	}
}

// Validate reports what makes no sense; n may come from another process.
func (n Neighbour) Validate() error {
	switch {
	case n.Generation < 1 || n.Generation > 9:
		return fmt.Errorf("neighbour: generation %d is not in 1..9", n.Generation)
	case n.AppIndex < 0:
		return fmt.Errorf("neighbour: interface %d", n.AppIndex)
	}
	return nil
}

// Neighbour describes this datapath to one that is to be opened beside it.
func (d *Datapath) Neighbour() (Neighbour, error) {
	if err := d.enter(); err != nil {
		return Neighbour{}, err
	}
	defer d.leave()
	n := Neighbour{Generation: d.cfg.Generation, AppIndex: d.appIndex}
	if d.cfg.Counting {
		return n, nil
	}
	for _, p := range []struct {
		prog *bpf.Program
		id   *uint32
	}{
		{d.objs.IngressL2, &n.Programs.InL2},
		{d.objs.IngressL3, &n.Programs.InL3},
		{d.objs.EgressL2, &n.Programs.OutL2},
		{d.objs.EgressL3, &n.Programs.OutL3},
	} {
		info, err := p.prog.Info()
		if err != nil {
			return Neighbour{}, fmt.Errorf("program: %w", err)
		}
		id, ok := info.ID()
		if !ok {
			return Neighbour{}, fmt.Errorf("program without id: %w", inspect.ErrKernel)
		}
		*p.id = uint32(id)
	}
	return n, nil
}

// HasNeighbour reports whether the datapath beside which this one was opened is
// still there, as far as is known.
func (d *Datapath) HasNeighbour() bool { return d.besideNow.Load() }

// Retire leaves all new connections to another datapath of the namespace, which
// has to be attached by now; none is offered, accepted or counted here. Those
// that were offered go on.
func (d *Datapath) Retire() error { return d.setRetired(true) }

// Activate ends Retire; a datapath with a [Config.Beside] begins retired.
func (d *Datapath) Activate() error { return d.setRetired(false) }

func (d *Datapath) setRetired(retired bool) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.retired = retired
	return d.putRetired(retired)
}

// putRetired tells the programs.
func (d *Datapath) putRetired(retired bool) error {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], bit(retired))
	if _, err := d.traces.mem.WriteAt(b[:], d.retiredAt); err != nil {
		return fmt.Errorf("retired: %w", err)
	}
	return nil
}

// Refuse keeps all new connections native for a reason, until it is called with
// 0.
func (d *Datapath) Refuse(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.NativeReason = uint32(reason) })
}

// attachWire attaches a wire program: before those of others, but behind the
// neighbour's, which decides about what it knows.
func (d *Datapath) attachWire(prog *bpf.Program, ifindex int, at bpf.AttachType) (link.Link, error) {
	if d.beside == nil {
		return attachTCX(prog, ifindex, at, link.Head())
	}
	l, err := attachTCX(prog, ifindex, at, link.AfterProgramByID(d.beside.Programs.of(d.objs, prog)))
	if errors.Is(err, unix.ENOENT) { // it is not on this device, or gone
		return attachTCX(prog, ifindex, at, link.Head())
	}
	return l, err
}

// followNeighbour takes note of its end. It runs on a thread of the namespace.
func (d *Datapath) followNeighbour() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.beside
	if n == nil {
		return nil
	}
	l, err := d.nl.LinkByIndex(n.AppIndex)
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil && l.Attrs().Name == (Config{Generation: n.Generation}).appName():
		return nil
	case err != nil && !errors.As(err, &missing):
		return fmt.Errorf("neighbour: %w", err)
	}
	d.beside = nil
	d.besideNow.Store(false)
	d.log.Info("the gateway beside this one is gone", "generation", n.Generation)
	return nil
}
