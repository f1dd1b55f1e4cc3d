package ebpf

import (
	"errors"
	"fmt"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/inspect"
)

// Neighbour describes another datapath in the same namespace, whose connections continue while this one takes the new
// ones (docs/ARCHITECTURE.md "Two gateways side by side"). The two share nothing: each has its own programs, maps,
// devices and namespace of legs.
type Neighbour struct {
	// Generation is that of its devices.
	Generation int `json:"generation"`
	// AppIndex is the interface index of its app TUN; 0 if it carries nothing.
	AppIndex int `json:"app_ifindex"`
	// Programs are the ids of its wire programs. Ours run after them.
	Programs WirePrograms `json:"programs"`
}

// WirePrograms are the ids of the programs on wire devices: for Ethernet link headers, for none, and for those of
// IPoIB. 0 means that there is no such program.
type WirePrograms struct {
	InL2  uint32 `json:"in_l2"`
	InL3  uint32 `json:"in_l3"`
	OutL2 uint32 `json:"out_l2"`
	OutL3 uint32 `json:"out_l3"`
	InIB  uint32 `json:"in_ipoib,omitempty"`
	OutIB uint32 `json:"out_ipoib,omitempty"`
}

// by maps our programs, some of which are nil, to the ids.
func (w *WirePrograms) by(o *objects) map[*bpf.Program]*uint32 {
	return map[*bpf.Program]*uint32{
		o.IngressL2: &w.InL2, o.IngressL3: &w.InL3, o.IngressIB: &w.InIB,
		o.EgressL2: &w.OutL2, o.EgressL3: &w.OutL3, o.EgressIB: &w.OutIB,
	}
}

// Validate reports implausible values, since n may come from another process.
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
	if d.counting {
		return n, nil
	}
	for prog, to := range n.Programs.by(d.objs) {
		if prog == nil {
			continue
		}
		info, err := prog.Info()
		if err != nil {
			return Neighbour{}, fmt.Errorf("program: %w", err)
		}
		id, ok := info.ID()
		if !ok {
			return Neighbour{}, fmt.Errorf("program without id: %w", inspect.ErrKernel)
		}
		*to = uint32(id)
	}
	return n, nil
}

// HasNeighbour reports whether the datapath beside which this one was opened is still there, as far as is known.
func (d *Datapath) HasNeighbour() bool { return d.besideNow.Load() }

// Retire leaves all new connections to another datapath of the namespace, which must already be attached. None is
// offered, accepted or counted here any more. Connections that were offered continue.
func (d *Datapath) Retire() error { return d.setRetired(true) }

// Activate undoes Retire. A datapath with [Config.Beside] starts retired.
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
	d.traces.word(d.retiredAt - d.traces.base).Store(bit(retired))
	return nil
}

// Refuse keeps all new connections native for the given reason until it is called with 0.
func (d *Datapath) Refuse(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.NativeReason = uint32(reason) })
}

// attachWire attaches a wire program ahead of all others, except that the neighbour's program runs first and decides
// about the connections it knows.
func (d *Datapath) attachWire(prog *bpf.Program, ifindex int, at bpf.AttachType) (link.Link, error) {
	var neighbours uint32
	if d.beside != nil {
		neighbours = *d.beside.Programs.by(d.objs)[prog]
	}
	if neighbours == 0 {
		return attachTCX(prog, ifindex, at, link.Head())
	}
	l, err := attachTCX(prog, ifindex, at, link.AfterProgramByID(bpf.ProgramID(neighbours)))
	if errors.Is(err, unix.ENOENT) { // the neighbour is not on this device, or gone
		return attachTCX(prog, ifindex, at, link.Head())
	}
	return l, err
}

// followNeighbour notices when the neighbour is gone. It runs on a thread of the namespace.
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
