package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/internal/procfs"
)

// kernel checks what the programs need.
func kernel(e *exam) []Line {
	release, _ := e.text("proc/sys/kernel/osrelease")
	list, err := e.host.Features()
	if err != nil {
		return []Line{failure("report this", "%v", err)}
	}
	var lines []Line
	unknown := 0
	for _, f := range list {
		switch {
		case errors.Is(f.Err, inspect.ErrKernel):
			lines = append(lines, failure("take a kernel of 6.6 or later with BTF, as Debian 13, Ubuntu 24.04 and RHEL 10 have", "Linux %s has no %s: %v", release, f.Name, f.Err))
		case f.Err != nil:
			unknown++
		}
	}
	switch {
	case len(lines) > 0:
		return lines
	case unknown > 0 && e.Daemon != nil:
		return []Line{ok("Linux %s: the daemon's programs are loaded", release)}
	case unknown > 0:
		return []Line{warning("run this as root", "Linux %s: %d of %d features could not be looked at", release, unknown, len(list))}
	}
	return []Line{ok("Linux %s has the %s that the programs need", release, counted(len(list), "feature"))}
}

// effective returns the effective capabilities of the process that counts.
func (e *exam) effective() (uint64, bool) {
	status, _ := e.text(e.process() + "/status")
	hex, _ := procfs.Value(status, "CapEff")
	set, err := strconv.ParseUint(hex, 16, 64)
	return set, err == nil
}

// capSysAdmin, capSysResource and capIPCLock are CAP_SYS_ADMIN, CAP_SYS_RESOURCE and
// CAP_IPC_LOCK.
const (
	capIPCLock     = 14
	capSysAdmin    = 21
	capSysResource = 24
)

// holds reports whether the process that counts has a capability.
func (e *exam) holds(number int) bool {
	set, found := e.effective()
	return found && set&(1<<number) != 0
}

// capabilities checks the capabilities of a gateway, by name.
func capabilities(e *exam) []Line {
	if _, found := e.effective(); !found {
		return []Line{warning("see /proc/self/status", "the capabilities of %s could not be read", e.subjectName())}
	}
	var have []string
	var lines []Line
	for _, c := range e.Capabilities {
		missing := failure
		switch {
		case e.holds(c.Number):
			have = append(have, c.Name)
			continue
		case c.Optional && e.Config.InProcess.Enabled == config.SwitchOff: // what it is for
			continue
		case c.Optional:
			missing = warning
		}
		lines = append(lines, missing("start the gateway as root, or give it the capability (AmbientCapabilities= and CapabilityBoundingSet= of its unit; --cap-add of a container)",
			"%s has no %s, for %s", e.subjectName(), c.Name, c.For))
	}
	if lines != nil {
		return lines
	}
	return []Line{ok("%s has %s", e.subjectName(), strings.Join(have, ", "))}
}

// namespaces checks the right to create a network namespace, which starting needs, and the rights of a gateway that
// takes over.
func namespaces(e *exam) []Line {
	why, setting := withoutUserNamespaces(e)
	switch {
	case e.Daemon != nil && why != "":
		return []Line{warning(setting, "the daemon has its network namespace, and no other gateway can take over from it (%s): an upgrade takes a restart", why)}
	case e.Daemon != nil:
		return []Line{ok("the daemon has its network namespace")}
	case e.holds(capSysAdmin) && why != "":
		return []Line{warning(setting+", or CAP_SYS_ADMIN for the service (operations/install.md)", "a network namespace can be made with CAP_SYS_ADMIN only (%s), which the packaged service does not have", why)}
	case e.holds(capSysAdmin):
		return []Line{ok("a network namespace can be made (CAP_SYS_ADMIN)")}
	case why != "":
		return []Line{failure("start the gateway as root, or "+setting, "neither CAP_SYS_ADMIN nor a user namespace (%s): the gateway's sockets need a network namespace", why)}
	}
	return []Line{ok("a network namespace can be made in a user namespace")}
}

// withoutUserNamespaces returns why an unprivileged process cannot create a user namespace here, and what permits it;
// empty if it can.
func withoutUserNamespaces(e *exam) (why, setting string) {
	most, limited := e.number("proc/sys/user/max_user_namespaces")
	restricted, _ := e.number("proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	clone, old := e.number("proc/sys/kernel/unprivileged_userns_clone")
	switch {
	case limited && most == 0:
		return "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=16384"
	case restricted == 1:
		return "AppArmor restricts them", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case old && clone == 0:
		return "kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"
	}
	return "", ""
}

// bpfSettings checks the settings of BPF. Nothing is pinned, so bpffs is not checked.
func bpfSettings(e *exam) []Line {
	var lines []Line
	if jit, found := e.number("proc/sys/net/core/bpf_jit_enable"); found && jit == 0 {
		lines = append(lines, warning("sysctl -w net.core.bpf_jit_enable=1", "programs are interpreted (net.core.bpf_jit_enable is 0): every packet costs more"))
	}
	if on, found := e.number("proc/sys/kernel/bpf_stats_enabled"); found && on == 1 {
		lines = append(lines, warning("sysctl -w kernel.bpf_stats_enabled=0", "every run of a program is timed (kernel.bpf_stats_enabled is 1)"))
	}
	if lines != nil {
		return lines
	}
	text := "programs are compiled"
	switch n, found := e.number("proc/sys/kernel/unprivileged_bpf_disabled"); {
	case found && n == 0:
		text += "; users without privileges may load programs too (kernel.unprivileged_bpf_disabled is 0), which the gateway does not need"
	case found:
		text += ", privileged users load them"
	}
	return []Line{ok("%s; no BPF file system is needed", text)}
}

// cgroup checks the mount of cgroup2, to which the programs are attached.
func cgroup(e *exam) []Line {
	const mount, correct = "mount -t cgroup2 none /sys/fs/cgroup, or name the mount in cgroup_path", "correct cgroup_path, or leave it out"
	if p := e.Config.CgroupPath; p != "" {
		if _, err := fs.Stat(e.files, strings.TrimPrefix(p, "/")); err != nil {
			return []Line{failure(correct, "cgroup_path: %v", err)}
		}
		if _, err := fs.Stat(e.files, path.Join(p[1:], config.CgroupMark)); err != nil {
			return []Line{failure(correct, "cgroup_path: %s is no directory of cgroup2", p)}
		}
		e.cgroup = p
		return []Line{ok("cgroup2 at %s, as configured", p)}
	}
	mounts, err := fs.ReadFile(e.files, "proc/self/mountinfo")
	if err != nil {
		return []Line{failure("mount -t proc proc /proc", "mounts could not be read: %v", err)}
	}
	e.cgroup, err = procfs.CgroupIn(string(mounts))
	switch {
	case err == nil && e.partOfCgroups():
		return []Line{warning("run the gateway where the whole hierarchy is mounted; a container: with the host's cgroup namespace",
			"cgroup2 at %s shows a part of the hierarchy: connections of programs outside of it are native", e.cgroup)}
	case err == nil:
		return []Line{ok("cgroup2 at %s", e.cgroup)}
	case e.Daemon != nil, e.holds(capSysAdmin):
		return []Line{ok("cgroup2 is not mounted here: the gateway opens it by itself")}
	default:
		return []Line{failure(mount, "cgroup2 is not mounted, and %s may not mount it (CAP_SYS_ADMIN)", e.subjectName())}
	}
}

// partOfCgroups reports that the root of the mount found is not that of the hierarchy.
func (e *exam) partOfCgroups() bool {
	mounts, _ := e.text("proc/self/mountinfo")
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.Contains(line, " - cgroup2 ") && fields[4] == e.cgroup {
			return fields[3] != "/"
		}
	}
	return false
}

// tun checks the device node through which the gateway takes packets.
func tun(e *exam) []Line {
	f, err := e.files.Open("dev/net/tun")
	if err == nil {
		_ = f.Close()
		return []Line{ok("/dev/net/tun can be opened")}
	}
	if e.Daemon != nil {
		return []Line{ok("the daemon has its TUN devices; /dev/net/tun cannot be opened from here: %v", cause(err))}
	}
	remedy := "run this as root"
	if errors.Is(err, fs.ErrNotExist) {
		remedy = "modprobe tun; a container: --device /dev/net/tun"
	}
	return []Line{failure(remedy, "/dev/net/tun cannot be opened: %v", cause(err))}
}

// cause returns an error about a file without the file's name.
func cause(err error) error {
	if p, found := errors.AsType[*fs.PathError](err); found {
		return p.Err
	}
	return err
}

// fastClocks returns the clock sources that are read without trapping into a device.
func fastClocks() []string {
	return []string{"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen", "riscv_clocksource"}
}

// clock checks the clock source, which the gateway reads for every packet.
func clock(e *exam) []Line {
	const dir = "sys/devices/system/clocksource/clocksource0/"
	source, found := e.text(dir + "current_clocksource")
	if !found {
		return []Line{ok("the clock source is unknown")}
	}
	if slices.Contains(fastClocks(), source) {
		return []Line{ok("source %s", source)}
	}
	others, _ := e.text(dir + "available_clocksource")
	return []Line{warning(fmt.Sprintf("choose a faster one of %q in /%scurrent_clocksource, or ask why the kernel has left it (dmesg)", others, dir),
		"source %s: each reading costs a microsecond or more", source)}
}

// limitOf returns the hard limit of the process that counts; -1: none.
func (e *exam) limitOf(name string) (int64, bool) {
	text, _ := e.text(e.process() + "/limits")
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, name+" ")
		fields := strings.Fields(rest) // soft, hard, unit
		if !found || len(fields) < 2 {
			continue
		}
		if fields[1] == "unlimited" {
			return -1, true
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// descriptors checks the limit on open files.
func descriptors(e *exam) []Line {
	remedy := "LimitNOFILE=1048576 in the unit; ulimit -Hn in a shell"
	if e.Daemon == nil {
		remedy = "nothing for the packaged unit, which has LimitNOFILE=1048576; else raise it by ulimit -Hn"
	}
	most, found := e.limitOf("Max open files")
	want := int64(e.Config.Limits.MaxFlows) + process.OwnDescriptors
	switch {
	case !found:
		return []Line{warning(remedy, "the limit on open files could not be read")}
	case most >= 0 && most <= process.OwnDescriptors:
		return []Line{failure(remedy, "%s may have %d open files: too few for the gateway itself", e.subjectName(), most)}
	case most >= 0 && most < want:
		return []Line{warning(remedy+"; or lower limits.max_flows", "%s may have %d open files: %d connections can be carried instead of %d (limits.max_flows)",
			e.subjectName(), most, most-process.OwnDescriptors, e.Config.Limits.MaxFlows)}
	}
	return []Line{ok("%s may have %s open files, %d are enough", e.subjectName(), limitText(most), want)}
}

func limitText(n int64) string {
	if n < 0 {
		return "any number of"
	}
	return strconv.FormatInt(n, 10)
}

// enoughMemlock is less than the connections of an adapter lock with default limits.
const enoughMemlock = 1 << 30

// memlock checks the limit on locked memory, which only adapters need.
func memlock(e *exam) []Line {
	most, found := e.limitOf("Max locked memory")
	switch {
	case !found:
		return []Line{warning("see ulimit -l", "the limit on locked memory could not be read")}
	case most < 0 || most >= enoughMemlock:
		return []Line{ok("%s may lock enough memory for adapters", e.subjectName())}
	case e.holds(capIPCLock) || e.Daemon == nil && e.holds(capSysResource):
		return []Line{ok("%s may lock %d KiB of memory, and more by its capabilities", e.subjectName(), most>>10)}
	}
	if rdma, err := e.host.RDMA(); e.Config.UsesAdapters() && err == nil && len(rdma.Adapters) > 0 {
		return []Line{warning("LimitMEMLOCK=infinity in the unit; ulimit -l unlimited in a shell",
			"%s may lock %d KiB of memory: connections beyond it do not use RDMA adapters (no_memory)", e.subjectName(), most>>10)}
	}
	return []Line{ok("%s may lock %d KiB of memory; only RDMA adapters need more, and this host has none in use", e.subjectName(), most>>10)}
}

// otherMemory is what a gateway needs besides limits.memory and the memory of each connection.
const otherMemory = 100 << 20

// memoryMax returns the limit of the daemon's control group, if it has one.
func (e *exam) memoryMax() (int64, bool) {
	groups, _ := e.text(e.process() + "/cgroup")
	group, found := procfs.Cgroup(groups)
	if !found || e.Daemon == nil || e.cgroup == "" {
		return 0, false
	}
	return e.number(path.Join(strings.TrimPrefix(e.cgroup, "/"), group, "memory.max")) // false for "max"
}

// memory compares limits.memory with what the host and the service allow.
func memory(e *exam) []Line {
	limit := int64(e.Config.Limits.Memory)
	if most, found := e.memoryMax(); found && most < limit+otherMemory {
		return []Line{warning("raise MemoryMax of its service, or lower limits.memory",
			"limits.memory is %d MiB, and a gateway takes %d MiB and 16 KiB for each connection besides: its control group may have %d MiB", limit>>20, otherMemory>>20, most>>20)}
	}
	text, _ := e.text("proc/meminfo")
	free, found := procfs.Bytes(text, "MemAvailable")
	switch {
	case !found:
		return []Line{ok("limits.memory is %d MiB; the host's memory is unknown", limit>>20)}
	case free < limit && e.Daemon == nil:
		return []Line{warning("lower limits.memory", "limits.memory is %d MiB, of which the host has %d MiB available", limit>>20, free>>20)}
	}
	return []Line{ok("limits.memory is %d MiB, the host has %d MiB available", limit>>20, free>>20)}
}
