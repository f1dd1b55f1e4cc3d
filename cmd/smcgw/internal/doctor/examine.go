package doctor

import (
	"context"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// Probes tell the checks what this process sees of its host.
type Probes interface {
	// Files is the root of the file system.
	Files() fs.FS
	// Features asks the kernel for what the programs need.
	Features() ([]inspect.Feature, error)
	// Hooks lists the programs of a cgroup and of network devices.
	Hooks(cgroup string, devices []string) []inspect.Hook
	// Devices lists the network devices; infiniBand: those of IPoIB may carry.
	Devices(infiniBand bool) ([]Device, error)
	// Chains lists the chains of nftables, those of iptables-nft too.
	Chains() ([]Chain, error)
	// Refuses sends a datagram and reports whether the host answers that nothing receives
	// there. Silence is no refusal.
	Refuses(ctx context.Context, to netip.AddrPort) (bool, error)
	// RDMA is what the kernel tells of adapters.
	RDMA() (sysfs.RDMA, error)
}

// Device is a network device.
type Device struct {
	Name string
	MTU  int
	Up   bool
	// Unoffering says why no offer can leave by it, and after a colon what to do; empty: it can.
	Unoffering string
	// Hardware: it is no device that the kernel makes by itself.
	Hardware bool
	// Default: a default route leads to it.
	Default bool
	// Off are the offloads that are switched off, by the names of ethtool -K.
	Off []string
}

// Chain is a chain of nftables.
type Chain struct{ Table, Name string }

// Capability is a privilege that a gateway needs.
type Capability struct {
	Number    int
	Name, For string
}

// Subject is what is examined besides the host.
type Subject struct {
	// Config is the configuration that the gateway has, or would start with. ConfigNotes and
	// ConfigError are what reading ConfigFile gave; "" is for none.
	Config      config.Config
	ConfigFile  string
	ConfigNotes []string
	ConfigError error
	// Capabilities are those of a gateway.
	Capabilities []Capability
	// Version is that of this program.
	Version string
	// Daemon is nil if none answers. Others are gateways of this network namespace then.
	Daemon *Daemon
	Others []string
	// Peer is nil if none was named.
	Peer *Peer
}

// Daemon is what a running gateway says of itself.
type Daemon struct {
	PID int // 0: not to be seen
	// Problem is why it cannot be asked; everything else is empty then.
	Problem string
	Status  report.Status
	Devices []report.DeviceInfo
	Peers   []report.PeerInfo
}

// Peer is another host.
type Peer struct {
	Address netip.Addr
	// Port is that of a service, 0: none was named.
	Port uint16
	// Carrier and Reason tell how a connection to the port was carried, or why not; both
	// empty: none was tried. Problem is why it failed.
	Carrier report.Carrier
	Reason  string
	Problem string
}

// exam is one examination.
type exam struct {
	Subject
	ctx   context.Context
	host  Probes
	files fs.FS
	// cgroup is the mount that was found, devices the names of those looked at.
	cgroup  string
	devices []string
}

// check is a row of the table.
type check struct {
	name string
	run  func(*exam) []Line
}

// checks are in the order in which things are needed; later ones use what earlier ones
// have found.
func checks() []check {
	return []check{
		{"kernel", kernel},
		{"capabilities", capabilities},
		{"namespaces", namespaces},
		{"bpf", bpfSettings},
		{"cgroup", cgroup},
		{"tun", tun},
		{"sysctls", sysctls},
		{"devices", devices},
		{"ports", ports},
		{"hooks", hooks},
		{"descriptors", descriptors},
		{"memlock", memlock},
		{"memory", memory},
		{"clock", clock},
		{"rdma", rdma},
		{"agents", agents},
		{"config", configuration},
		{"daemon", daemon},
		{"peer", peer},
	}
}

// Examine looks at everything. What cannot be looked at is a line, too.
func Examine(ctx context.Context, h Probes, s Subject) Report {
	e := &exam{Subject: s, ctx: ctx, host: h, files: h.Files()}
	r := Report{Schema: Schema, Lines: []Line{}}
	for _, c := range checks() {
		r.add(c.name, c.run(e))
	}
	return r
}

// text is the content of a file without space around it, and whether it could be read.
func (e *exam) text(name string) (string, bool) {
	b, err := fs.ReadFile(e.files, name)
	return strings.TrimSpace(string(b)), err == nil
}

// number is the content of a file that holds one.
func (e *exam) number(name string) (int64, bool) {
	s, found := e.text(name)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, found && err == nil
}

// process is the directory of the process that counts: the daemon, else this one.
func (e *exam) process() string {
	if e.Daemon != nil && e.Daemon.PID > 0 {
		dir := "proc/" + strconv.Itoa(e.Daemon.PID)
		if _, err := fs.Stat(e.files, dir+"/status"); err == nil {
			return dir
		}
	}
	return "proc/self"
}

// subjectName names the process of process.
func (e *exam) subjectName() string {
	if e.process() == "proc/self" {
		return "this shell"
	}
	return "the daemon"
}

// uses reports whether the configuration has a kind of device.
func (e *exam) uses(k report.DeviceKind) bool { return slices.Contains(e.Config.Carriers, k) }
