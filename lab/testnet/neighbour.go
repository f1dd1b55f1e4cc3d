package testnet

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/smcgw/smcgw/internal/procfs"
)

// Neighbours are foreign programs on a host's device and in the root cgroup, such as monitoring and networking agents
// attach. They count packets and pass them on, and write a TCP option of their own on each segment of connections that
// are made while they are attached.
type Neighbours struct {
	seen, wrote *ebpf.Map
	closers     []func() error
}

// Operations of struct bpf_sock_ops, and the flag with which its program requests them (linux/bpf.h).
const (
	sockOpsConnect    = 3
	sockOpsOptionLen  = 14
	sockOpsOption     = 15
	sockOpsWantOption = 1 << 6
)

// NeighbourOption is the option that the neighbours write: kind 253 (RFC 4727), four bytes.
var NeighbourOption = [4]byte{253, 4, 0xab, 0xcd}

// NewNeighbours attaches the programs to the host's device, both before and after the programs there and in both
// directions, and to the root cgroup. Close detaches them.
func NewNeighbours(h *Host) (*Neighbours, error) {
	n := &Neighbours{}
	if err := n.attach(h); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Neighbours) attach(h *Host) (err error) {
	if n.seen, err = n.counter("neighbour_seen"); err != nil {
		return err
	}
	if n.wrote, err = n.counter("neighbour_wrote"); err != nil {
		return err
	}
	dev, err := h.node.nl.LinkByName(h.Device)
	if err != nil {
		return fmt.Errorf("device %s: %w", h.Device, err)
	}
	if err := h.Do(func() error { return n.attachDevice(dev.Attrs().Index) }); err != nil {
		return err
	}
	return n.attachSockOps()
}

// attachDevice attaches one program at each position, since a program cannot be at two positions of a hook.
func (n *Neighbours) attachDevice(ifindex int) error {
	for _, way := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		for _, where := range []link.Anchor{link.Head(), link.Tail()} {
			pass, err := n.program(&ebpf.ProgramSpec{
				Name: "neighbour_pass", Type: ebpf.SchedCLS, License: "GPL",
				Instructions: append(count(n.seen), asm.Mov.Imm(asm.R0, -1), asm.Return()), // TCX_NEXT
			})
			if err != nil {
				return err
			}
			l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: pass, Attach: way, Anchor: where})
			if err != nil {
				return fmt.Errorf("attach neighbour: %w", err)
			}
			n.closers = append(n.closers, l.Close)
		}
	}
	return nil
}

// attachSockOps attaches the program that writes the option. Other programs may be attached to the same cgroup.
func (n *Neighbours) attachSockOps() error {
	write, err := n.program(&ebpf.ProgramSpec{
		Name: "neighbour_option", Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: n.writeOption(),
	})
	if err != nil {
		return err
	}
	root, err := procfs.CgroupMount()
	if err != nil {
		return err
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: ebpf.AttachCGroupSockOps, Program: write})
	if err != nil {
		return fmt.Errorf("attach neighbour: %w", err)
	}
	n.closers = append(n.closers, l.Close)
	return nil
}

// writeOption returns instructions that reserve and write the option on every segment of sockets that connect.
func (n *Neighbours) writeOption() asm.Instructions {
	option := int32(NeighbourOption[0]) | int32(NeighbourOption[1])<<8 | int32(NeighbourOption[2])<<16 |
		int32(uint32(NeighbourOption[3])<<24)
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // op
		asm.JEq.Imm(asm.R2, sockOpsOptionLen, "reserve"),
		asm.JEq.Imm(asm.R2, sockOpsOption, "write"),
		asm.JNE.Imm(asm.R2, sockOpsConnect, "end"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMem(asm.R2, asm.R6, 84, asm.Word), // bpf_sock_ops_cb_flags
		asm.Or.Imm(asm.R2, sockOpsWantOption),
		asm.FnSockOpsCbFlagsSet.Call(),
		asm.Ja.Label("end"),

		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("reserve"),
		asm.Mov.Imm(asm.R2, int32(len(NeighbourOption))),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
		asm.Ja.Label("end"),

		asm.StoreImm(asm.RFP, -8, int64(option), asm.Word).WithSymbol("write"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, int32(len(NeighbourOption))),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnStoreHdrOpt.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"),
	}
	ins = append(ins, count(n.wrote)...)
	return append(ins, asm.Mov.Imm(asm.R0, 1).WithSymbol("end"), asm.Return())
}

// count returns instructions that add one to a counter. They preserve R6 to R9.
func count(m *ebpf.Map) asm.Instructions {
	done := m.String() + "-done"
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -16, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -16),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, done),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol(done),
	}
}

func (n *Neighbours) counter(name string) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	n.closers = append(n.closers, m.Close)
	return m, nil
}

func (n *Neighbours) program(spec *ebpf.ProgramSpec) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("program %s: %w", spec.Name, err)
	}
	n.closers = append(n.closers, p.Close)
	return p, nil
}

// Counts returns how many packets passed, each counted before and after the programs in between, and how many options
// were written.
func (n *Neighbours) Counts() (seen, wrote uint64, err error) {
	err = errors.Join(n.seen.Lookup(uint32(0), &seen), n.wrote.Lookup(uint32(0), &wrote))
	return seen, wrote, err
}

// Close detaches the programs.
func (n *Neighbours) Close() error {
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c())
	}
	n.closers = nil
	return errors.Join(errs...)
}
