package sysfs

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RDMA describes the RDMA of a host, as far as the namespaces and rights of this process show it.
type RDMA struct {
	Adapters []Adapter `json:"adapters"`
	// Namespaces is how adapters are shared between network namespaces: "shared", all namespaces see all adapters;
	// "exclusive", each adapter is in one. Empty: no RDMA driver is loaded.
	Namespaces string `json:"netns,omitempty"`
	// Memlock is how many bytes the process may register, -1: no limit.
	Memlock int64 `json:"memlock_bytes"`
}

// kernel is the source of an RDMA.
type kernel struct {
	root       fs.FS // of the file system
	access     func(name string) error
	priorities func(device string) *Priorities
	// namespaces and use ask RDMA netlink; use is keyed by adapter.
	namespaces func() string
	use        func() map[string]map[string]uint64
	memlock    func() int64
}

// Read reads this host's RDMA.
func Read() (RDMA, error) {
	k := kernel{
		root: os.DirFS("/"), access: access, priorities: priorities, memlock: memlock,
		namespaces: func() string {
			mode, err := netlink.RdmaSystemGetNetnsMode()
			if err != nil {
				return ""
			}
			return mode
		},
		use: use,
	}
	return k.read()
}

// use counts the objects that programs have created, by adapter.
func use() map[string]map[string]uint64 {
	list, err := netlink.RdmaResourceList()
	if err != nil {
		return nil
	}
	counts := map[string]map[string]uint64{}
	for _, r := range list {
		counts[r.Name] = r.RdmaResourceSummaryEntries
	}
	return counts
}

// memlock returns the limit of locked memory of this process, or -1 for none.
func memlock() int64 {
	var caps [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if unix.Capget(&header, &caps[0]) != nil {
		caps[0].Effective = 0
	}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil {
		return -1
	}
	return locked(caps[0].Effective, lim.Cur)
}

// locked returns the effective limit: CAP_IPC_LOCK overrides it.
func locked(effective uint32, limit uint64) int64 {
	if effective&(1<<unix.CAP_IPC_LOCK) != 0 || limit > math.MaxInt64 {
		return -1
	}
	return int64(limit)
}

// read reads everything. It fails only if something cannot be listed; an attribute that cannot be read is empty.
func (k *kernel) read() (RDMA, error) {
	h := RDMA{Adapters: []Adapter{}, Memlock: k.memlock()}
	sys, err := fs.Sub(k.root, "sys")
	if err != nil {
		return h, fmt.Errorf("sysfs: %w", err)
	}
	list, err := adapters(sys)
	if err != nil || len(list) == 0 {
		return h, err
	}
	h.Adapters, h.Namespaces = list, k.namespaces()
	nodes, limits, use := verbsNodes(sys), cgroupLimits(k.root), k.use()
	for i := range list {
		a := &list[i]
		if name := nodes[a.Name]; name != "" {
			a.Verbs = &Node{Path: "/dev/infiniband/" + name}
			a.Verbs.Problem = problem(k.access(a.Verbs.Path))
		}
		a.Limits, a.Use = limits[a.Name], use[a.Name]
		k.describePorts(a)
	}
	return h, nil
}

// describePorts adds what is not in the directories of the ports.
func (k *kernel) describePorts(a *Adapter) {
	for i := range a.Ports {
		p := &a.Ports[i]
		p.TOS, _ = text(k.root, path.Join("sys/kernel/config/rdma_cm", a.Name, "ports", strconv.Itoa(p.Number)), "default_roce_tos")
		if device := p.device(a.Parent); device != "" {
			p.Priorities = k.priorities(device)
		}
		p.Unusable = a.unusable(p)
		if p.Unusable == "" && a.InfiniBand(p) {
			p.Unusable = k.pathProblem()
		}
	}
}

// managerPath is the device of the kernel's connection manager.
const managerPath = "/dev/infiniband/rdma_cm"

// pathProblem returns why the kernel cannot be asked for paths in a subnet, or "".
func (k *kernel) pathProblem() string {
	if text := problem(k.access(managerPath)); text != "" {
		return managerPath + ", of the module rdma_ucm: " + text
	}
	return ""
}

// device returns the network device below the port: that of its first GID.
func (p *Port) device(parent string) string {
	if len(p.GIDs) == 0 {
		return parent
	}
	return cmp.Or(p.GIDs[0].Device, parent)
}
