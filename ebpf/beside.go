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

// Neighbour is what a datapath has to know of another one in its namespace, whose
// connections go on while it takes the new ones (docs/ARCHITECTURE.md "Two
// gateways side by side"). The two share nothing: each has programs, maps, devices
// and a namespace of legs of its own.
type Neighbour struct {
	// Generation is that of its devices.
	Generation int `json:"generation"`
	// AppIndex is the interface of its A; 0: it carries nothing.
	AppIndex int `json:"app_ifindex"`
	// Programs are the ids of its wire programs. Ours come after them.
	Programs WirePrograms `json:"programs"`
}

// WirePrograms are the ids of the programs on wire devices: with a link header of
// Ethernet, without one, and with IPoIB's. 0: it has none.
type WirePrograms struct {
	InL2  uint32 `json:"in_l2"`
	InL3  uint32 `json:"in_l3"`
	OutL2 uint32 `json:"out_l2"`
	OutL3 uint32 `json:"out_l3"`
	InIB  uint32 `json:"in_ipoib,omitempty"`
	OutIB uint32 `json:"out_ipoib,omitempty"`
}

// by returns the ids by our programs, of which some are nil.
func (w *WirePrograms) by(o *objects) map[*bpf.Program]*uint32 {
	return map[*bpf.Program]*uint32{
		o.IngressL2: &w.InL2, o.IngressL3: &w.InL3, o.IngressIB: &w.InIB,
		o.EgressL2: &w.OutL2, o.EgressL3: &w.OutL3, o.EgressIB: &w.OutIB,
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
	d.traces.word(d.retiredAt - d.traces.base).Store(bit(retired))
	return nil
}

// Refuse keeps all new connections native for a reason, until it is called with
// 0.
func (d *Datapath) Refuse(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.NativeReason = uint32(reason) })
}

// attachWire attaches a wire program: before those of others, but after the
// neighbour's, which decides about what it knows.
func (d *Datapath) attachWire(prog *bpf.Program, ifindex int, at bpf.AttachType) (link.Link, error) {
	var neighbours uint32
	if d.beside != nil {
		neighbours = *d.beside.Programs.by(d.objs)[prog]
	}
	if neighbours == 0 {
		return attachTCX(prog, ifindex, at, link.Head())
	}
	l, err := attachTCX(prog, ifindex, at, link.AfterProgramByID(bpf.ProgramID(neighbours)))
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
