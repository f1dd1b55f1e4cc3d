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
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// Probes provides the checks with what this process can see of its host.
type Probes interface {
	// Files returns the root of the file system.
	Files() fs.FS
	// Features returns the kernel features that the programs need.
	Features() ([]inspect.Feature, error)
	// Hooks lists the programs of a cgroup and of network devices.
	Hooks(cgroup string, devices []string) []inspect.Hook
	// Devices lists the network devices; infiniBand says that IPoIB devices may carry.
	Devices(infiniBand bool) ([]Device, error)
	// Chains lists the chains of nftables, including those of iptables-nft.
	Chains() ([]Chain, error)
	// Refuses sends a datagram and reports whether the host answers that nothing receives there. Silence is not a refusal.
	Refuses(ctx context.Context, to netip.AddrPort) (bool, error)
	// RDMA returns what the kernel reports about adapters.
	RDMA() (sysfs.RDMA, error)
}

// Device is a network device.
type Device struct {
	Name string
	MTU  int
	Up   bool
	// Unoffering is why no offer can leave through the device, and after a colon what to do; empty: offers can.
	Unoffering string
	// Hardware means that it is not a device that the kernel creates by itself.
	Hardware bool
	// Default means that a default route uses it.
	Default bool
	// Off lists the offloads that are switched off, by the names of ethtool -K.
	Off []string
}

// Chain is a chain of nftables.
type Chain struct{ Table, Name string }

// Subject is what is examined besides the host.
type Subject struct {
	// Config is the configuration that the gateway has, or would start with. ConfigNotes and ConfigError are the results
	// of reading ConfigFile; "" means no file.
	Config      config.Config
	ConfigFile  string
	ConfigNotes []string
	ConfigError error
	// Capabilities are those that a gateway keeps.
	Capabilities []process.Capability
	// Version is the version of this program.
	Version string
	// Daemon is nil if none answers. In that case Others lists gateways of this network namespace.
	Daemon *Daemon
	Others []string
	// Peer is nil if none was named.
	Peer *Peer
}

// Daemon is what a running gateway reports about itself.
type Daemon struct {
	PID int // 0: it cannot be seen
	// Problem is why it cannot be queried; everything else is empty then.
	Problem string
	Status  report.Status
	Devices []report.DeviceInfo
	Peers   []report.PeerInfo
}

// Peer is another host.
type Peer struct {
	Address netip.Addr
	// Port is that of a service, 0: none was given.
	Port uint16
	// Carrier and Reason tell how a connection to the port was carried, or why it was not; both are empty if none was
	// tried. Problem is why it failed.
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
	// cgroup is the mount that was found, devices the names of the devices examined.
	cgroup  string
	devices []string
}

// check is a row of the table.
type check struct {
	name string
	run  func(*exam) []Line
}

// checks returns the checks in the order in which things are needed; later ones use the results of earlier ones.
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

// Examine runs all checks. What cannot be examined is a line, too.
func Examine(ctx context.Context, h Probes, s Subject) Report {
	e := &exam{Subject: s, ctx: ctx, host: h, files: h.Files()}
	r := Report{Schema: Schema, Lines: []Line{}}
	for _, c := range checks() {
		r.add(c.name, c.run(e))
	}
	return r
}

// text returns the trimmed content of a file, and whether it could be read.
func (e *exam) text(name string) (string, bool) {
	b, err := fs.ReadFile(e.files, name)
	return strings.TrimSpace(string(b)), err == nil
}

// number returns the content of a file that contains a number.
func (e *exam) number(name string) (int64, bool) {
	s, found := e.text(name)
	n, err := strconv.ParseInt(s, 10, 64)
	return n, found && err == nil
}

// process returns the /proc directory of the process that counts: the daemon, else this one.
func (e *exam) process() string {
	if e.Daemon != nil && e.Daemon.PID > 0 {
		dir := "proc/" + strconv.Itoa(e.Daemon.PID)
		if _, err := fs.Stat(e.files, dir+"/status"); err == nil {
			return dir
		}
	}
	return "proc/self"
}

// subjectName describes the process that counts.
func (e *exam) subjectName() string {
	if e.process() == "proc/self" {
		return "this shell"
	}
	return "the daemon"
}

// uses reports whether the configuration has a kind of device.
func (e *exam) uses(k report.DeviceKind) bool { return slices.Contains(e.Config.Carriers, k) }
