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

// RDMA is what a host has of it, as far as the namespaces and rights of the
// process that looks show it.
type RDMA struct {
	Adapters []Adapter `json:"adapters"`
	// Namespaces is how adapters are shared between network namespaces: shared, all
	// see all of them; exclusive, each adapter is in one. Empty: no RDMA driver is
	// loaded.
	Namespaces string `json:"netns,omitempty"`
	// Memlock is how many bytes the process may register, -1 without limit.
	Memlock int64 `json:"memlock_bytes"`
}

// kernel is what an RDMA is read from.
type kernel struct {
	root       fs.FS // of the file system
	access     func(name string) error
	priorities func(device string) *Priorities
	// namespaces and use ask RDMA netlink; use is keyed by adapter.
	namespaces func() string
	use        func() map[string]map[string]uint64
	memlock    func() int64
}

// Read looks at this host.
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

// use counts what programs have made, by adapter.
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

// memlock is the limit of locked memory of this process, -1 for none.
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

// locked: CAP_IPC_LOCK overrides the limit.
func locked(effective uint32, limit uint64) int64 {
	if effective&(1<<unix.CAP_IPC_LOCK) != 0 || limit > math.MaxInt64 {
		return -1
	}
	return int64(limit)
}

// read reads everything. Only what cannot be listed is an error; an attribute that
// cannot be read is empty.
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

// describePorts adds what does not stand in the directories of the ports.
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

// managerPath is the kernel's connection manager for programs.
const managerPath = "/dev/infiniband/rdma_cm"

// pathProblem is why the kernel cannot be asked for paths in a subnet, empty if it can.
func (k *kernel) pathProblem() string {
	if text := problem(k.access(managerPath)); text != "" {
		return managerPath + ", of the module rdma_ucm: " + text
	}
	return ""
}

// device is the network device below the port: that of its first GID.
func (p *Port) device(parent string) string {
	if len(p.GIDs) == 0 {
		return parent
	}
	return cmp.Or(p.GIDs[0].Device, parent)
}
