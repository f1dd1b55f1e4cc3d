package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// classDir is where the kernel lists adapters, below /sys.
const classDir = "class/infiniband"

// Bounds on what is read.
const (
	maxAdapters = 1024
	maxPorts    = 255
	maxGIDs     = 4096 // of a port
)

// Adapter is an RDMA device.
type Adapter struct {
	// Name is the name of the RDMA device: mlx5_0.
	Name string `json:"name"`
	// Driver is the kernel's driver of the hardware. If there is none (rdma_rxe, siw) it is empty, and Parent is the
	// underlying network device.
	Driver string `json:"driver,omitempty"`
	Parent string `json:"parent,omitempty"`
	// PCI is the address of the hardware on its bus.
	PCI string `json:"pci,omitempty"`
	// NUMA is the hardware's node, -1 if the kernel reports none.
	NUMA int `json:"numa"`
	// Node is the kernel's name of the node type: CA (InfiniBand and RoCE), RNIC (iWARP), unspecified (EFA).
	Node     string `json:"node_type"`
	GUID     string `json:"guid,omitempty"`
	Board    string `json:"board,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	// Verbs is the device node that programs open; nil: ib_uverbs has none.
	Verbs *Node `json:"verbs,omitempty"`
	// Use counts the adapter's objects that programs have created: qp, cq, mr, pd, cm_id, ctx, srq.
	Use map[string]uint64 `json:"use,omitempty"`
	// Limits are the limits of control groups (rdma.max): hca_handle, hca_object.
	Limits map[string]uint64 `json:"cgroup_limits,omitempty"`
	Ports  []Port            `json:"ports"`
}

// Port is a port of an adapter.
type Port struct {
	Number    int    `json:"port"`
	LinkLayer string `json:"link_layer"` // Ethernet, InfiniBand, Unknown
	State     string `json:"state"`      // ACTIVE, DOWN, INIT, ARMED
	Physical  string `json:"physical_state"`
	Rate      string `json:"rate"`
	LID       uint16 `json:"lid,omitempty"`
	GIDs      []GID  `json:"gids"`
	// TrafficClass is the value that the driver puts into packets regardless of what programs request, as reported by the
	// vendor's driver of mlx5; TOS is the same for connections of the kernel's CM. Empty: not reported.
	TrafficClass string `json:"traffic_class,omitempty"`
	TOS          string `json:"cm_tos,omitempty"`
	// Priorities is how the port's network device handles priorities; nil: it has no DCB.
	Priorities *Priorities `json:"dcb,omitempty"`
	// Unusable is why the gateway cannot use the port.
	Unusable string `json:"unusable,omitempty"`
}

// RoCE reports whether the port speaks any version of RoCE.
func (a *Adapter) RoCE(p *Port) bool { return a.Node == nodeCA && p.LinkLayer == linkEthernet }

// InfiniBand reports whether the port is in an InfiniBand subnet.
func (a *Adapter) InfiniBand(p *Port) bool { return a.Node == nodeCA && p.LinkLayer == linkInfiniBand }

// Kinds of nodes and link layers (drivers/infiniband/core/sysfs.c).
const (
	nodeCA         = "CA"
	nodeRNIC       = "RNIC"
	linkEthernet   = "Ethernet"
	linkInfiniBand = "InfiniBand"
)

// adapters reads all adapters from sys, a file system like /sys.
func adapters(sys fs.FS) ([]Adapter, error) {
	entries, err := fs.ReadDir(sys, classDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no RDMA driver is loaded
	}
	if err != nil {
		return nil, fmt.Errorf("rdma devices: %w", err)
	}
	var list []Adapter
	for _, e := range entries[:min(len(entries), maxAdapters)] {
		if a, ok := readAdapter(sys, e.Name()); ok {
			list = append(list, a)
		}
	}
	return list, nil
}

// readAdapter reads one adapter; false: it was removed meanwhile.
func readAdapter(sys fs.FS, name string) (Adapter, bool) {
	dir := path.Join(classDir, name)
	kind, ok := text(sys, dir, "node_type")
	if !ok {
		return Adapter{}, false
	}
	a := Adapter{Name: name, Node: word(kind), NUMA: -1}
	a.GUID, _ = text(sys, dir, "node_guid")
	a.Firmware, _ = text(sys, dir, "fw_ver")
	a.Parent, _ = text(sys, dir, "parent")
	for _, f := range []string{"board_id", "hca_type"} {
		if v, _ := text(sys, dir, f); v != "" && a.Board == "" {
			a.Board = v
		}
	}
	a.Driver = target(sys, dir, "device/driver")
	if a.Driver != "" {
		a.PCI = target(sys, dir, "device")
	}
	if v, ok := text(sys, dir, "device/numa_node"); ok {
		if n, err := strconv.Atoi(v); err == nil {
			a.NUMA = n
		}
	}
	for _, n := range numbers(sys, path.Join(dir, "ports"), maxPorts) {
		a.Ports = append(a.Ports, readPort(sys, dir, n))
	}
	return a, true
}

func readPort(sys fs.FS, dir string, n int) Port {
	at := path.Join(dir, "ports", strconv.Itoa(n))
	p := Port{Number: n, GIDs: gids(sys, at)}
	p.LinkLayer, _ = text(sys, at, "link_layer")
	state, _ := text(sys, at, "state")
	p.State = word(state)
	state, _ = text(sys, at, "phys_state")
	p.Physical = word(state)
	p.Rate, _ = text(sys, at, "rate")
	lid, _ := text(sys, at, "lid")
	if v, err := strconv.ParseUint(lid, 0, 16); err == nil {
		p.LID = uint16(v)
	}
	p.TrafficClass, _ = text(sys, dir, path.Join("tc", strconv.Itoa(n), "traffic_class"))
	return p
}

// text reads an attribute and trims it; false: there is none, or it has no value, as for an unused index of a table.
func text(sys fs.FS, dir, name string) (string, bool) {
	b, err := fs.ReadFile(sys, path.Join(dir, name))
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(strings.TrimRight(string(b), "\x00")), true
}

// word returns the part after the number in "4: ACTIVE".
func word(s string) string {
	if _, after, ok := strings.Cut(s, ": "); ok {
		return after
	}
	return s
}

// target returns the last component of a link's target, or "" if there is no link.
func target(sys fs.FS, dir, name string) string {
	to, err := fs.ReadLink(sys, path.Join(dir, name))
	if err != nil {
		return ""
	}
	return path.Base(to)
}

// numbers lists the entries of a directory that are numbers up to a bound, sorted.
func numbers(sys fs.FS, dir string, bound int) (list []int) {
	entries, err := fs.ReadDir(sys, dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n >= 0 && n <= bound {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}
