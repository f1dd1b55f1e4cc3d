package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess/scan"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// runs is a daemon without complaints.
func runs() *Daemon {
	return &Daemon{PID: 4242, Status: report.Status{Version: "1.2.3", Mode: report.ModeEnforce, FlowLimit: report.FlowLimit{Now: 20000, Configured: 20000}}}
}

// broken makes everything fail that can.
func broken(t testing.TB) (*fakeHost, Subject) {
	h, s := healthyHost(t), subjectOf()
	h.features = []inspect.Feature{{Name: "tcx links and BTF", Err: &inspect.KernelError{Missing: "tcx links (Linux 6.6)", Release: "6.1.0"}}}
	h.put("proc/self/status", "CapEff:\t0000000000001000\n")
	h.put("proc/sys/user/max_user_namespaces", "0\n")
	h.put("proc/sys/net/core/bpf_jit_enable", "0\n")
	h.put("proc/sys/kernel/bpf_stats_enabled", "1\n")
	h.put("proc/self/mountinfo", "24 30 0:22 / /sys rw - sysfs sysfs rw\n")
	delete(h.tree, "dev/net/tun")
	h.put("proc/sys/net/ipv4/tcp_timestamps", "0\n")
	h.put("proc/sys/net/ipv4/tcp_ecn", "1\n")
	s.Config.Devices = []string{"eht0", "lo", "eth0"}
	h.devices[1].Off = []string{"tso", "gro"}
	h.put("proc/net/udp6", "head\n 1: 00000000000000000000000000000000:12B7 0:0 07\n 2: 0:12B6 0:0 07\n")
	h.hooks[0].Programs, h.hooks[1].Programs = make([]string, 64), make([]string, 60)
	h.put("proc/self/limits", "Max open files            64                   320                  files\nMax locked memory         65536                65536                bytes\n")
	h.put("proc/meminfo", "MemAvailable:   131072 kB\n")
	h.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n")
	h.rdma = sysfs.RDMA{Memlock: 64 << 10, Adapters: []sysfs.Adapter{{Name: "mlx5_0", Ports: []sysfs.Port{{Number: 1, State: "DOWN", Unusable: "the port is DOWN"}}}}}
	h.chains = []Chain{{"firewalld", "filter_INPUT"}, {"nat", "KUBE-SERVICES"}, {"nat", "DOCKER"}}
	h.hooks[1].Programs[0] = "cil_from_netdev"
	s.ConfigFile, s.ConfigError = "bad.yaml", errors.New("line 2: mdoe: unknown field\nline 3: limits: no number")
	h.refuses = true
	s.Peer = &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 6379, Reason: "peer_no_option"}
	return h, s
}

// TestGolden: the whole report, for people and as JSON, of hosts at both ends.
func TestGolden(t *testing.T) {
	brokenHost, brokenSubject := broken(t)
	for _, c := range []struct {
		name string
		host *fakeHost
		s    Subject
	}{{"healthy", healthyHost(t), subjectOf()}, {"broken", brokenHost, brokenSubject}} {
		r := Examine(t.Context(), c.host, c.s)
		var text, doc bytes.Buffer
		require.NoError(t, r.Text(&text, nil))
		golden.File(t, c.name+".txt", text.String())
		enc := json.NewEncoder(&doc)
		enc.SetIndent("", " ")
		require.NoError(t, enc.Encode(r))
		golden.File(t, c.name+".json", doc.String())
	}
}

// line finds the first line of a check in a state.
func line(t *testing.T, r Report, check string, s State) Line {
	t.Helper()
	for _, l := range r.Lines {
		if l.Check == check && l.State == s {
			return l
		}
	}
	require.Failf(t, "no such line", "%s %s in %+v", check, s, r.Lines)
	return Line{}
}

// TestEachCheck: one change of a healthy host, and what it leads to.
func TestEachCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeHost, *Subject)
		check  string
		state  State
		want   string
	}{
		"features unknown": {func(h *fakeHost, _ *Subject) { h.features[0].Err = fs.ErrPermission }, "kernel", Warning, "1 of 2 features could not be looked at"},
		"features unknown, daemon runs": {func(h *fakeHost, s *Subject) {
			h.features[0].Err, s.Daemon = fs.ErrPermission, runs()
		}, "kernel", OK, "the daemon's programs are loaded"},
		"object": {func(h *fakeHost, _ *Subject) { h.err = errors.New("object: bad") }, "kernel", Failure, "object: bad"},
		"no CAP_BPF": {
			func(h *fakeHost, _ *Subject) { h.put("proc/self/status", "CapEff:\t0000004000201000\n") }, "capabilities", Failure,
			"this shell has no CAP_BPF, for programs",
		},
		"no status": {func(h *fakeHost, _ *Subject) { delete(h.tree, "proc/self/status") }, "capabilities", Warning, "could not be read"},
		"the daemon's capabilities": {func(h *fakeHost, s *Subject) {
			s.Daemon = runs()
			h.put("proc/4242/status", "CapEff:\t000000c000081000\n")
			h.put("proc/self/status", "CapEff:\t0\n")
		}, "capabilities", OK, "the daemon has CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE"},
		"no CAP_SYS_PTRACE": {func(h *fakeHost, _ *Subject) {
			h.put("proc/self/status", "CapEff:\t000000c000001000\n")
		}, "capabilities", Warning, "this shell has no CAP_SYS_PTRACE, for programs in process"},
		"no CAP_SYS_PTRACE, nor the way": {func(h *fakeHost, s *Subject) {
			h.put("proc/self/status", "CapEff:\t000000c000001000\n")
			s.Config.InProcess.Enabled = config.SwitchOff
		}, "capabilities", OK, "this shell has CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON"},
		"AppArmor": {func(h *fakeHost, _ *Subject) {
			h.put("proc/self/status", "CapEff:\t000000c000001000\n")
			h.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
		}, "namespaces", Failure, "AppArmor restricts"},
		"Debian": {func(h *fakeHost, _ *Subject) {
			h.put("proc/self/status", "CapEff:\t000000c000001000\n")
			h.put("proc/sys/kernel/unprivileged_userns_clone", "0\n")
		}, "namespaces", Failure, "unprivileged_userns_clone is 0"},
		"AppArmor, as root": {func(h *fakeHost, _ *Subject) {
			h.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
		}, "namespaces", Warning, "the packaged service does not have"},
		"AppArmor, beside a daemon": {func(h *fakeHost, s *Subject) {
			s.Daemon = runs()
			h.put("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
		}, "namespaces", Warning, "no other gateway can take over"},
		"user namespace":     {func(h *fakeHost, _ *Subject) { h.put("proc/self/status", "CapEff:\t000000c000001000\n") }, "namespaces", OK, "in a user namespace"},
		"unprivileged BPF":   {func(h *fakeHost, _ *Subject) { h.put("proc/sys/kernel/unprivileged_bpf_disabled", "0\n") }, "bpf", OK, "without privileges may load"},
		"cgroup not mounted": {func(h *fakeHost, _ *Subject) { h.put("proc/self/mountinfo", "") }, "cgroup", OK, "opens it by itself"},
		"no proc":            {func(h *fakeHost, _ *Subject) { delete(h.tree, "proc/self/mountinfo") }, "cgroup", Failure, "mounts could not be read"},
		"part of cgroups": {func(h *fakeHost, _ *Subject) {
			h.put("proc/self/mountinfo", "31 24 0:27 /pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
		}, "cgroup", Warning, "a part of the hierarchy"},
		"cgroup_path":           {func(_ *fakeHost, s *Subject) { s.Config.CgroupPath = "/nowhere" }, "cgroup", Failure, "cgroup_path"},
		"cgroup_path elsewhere": {func(_ *fakeHost, s *Subject) { s.Config.CgroupPath = "/proc" }, "cgroup", Failure, "/proc is no directory of cgroup2"},
		"cgroup_path is there": {func(h *fakeHost, s *Subject) {
			h.put("mnt/unified/cgroup.controllers", "cpu memory\n")
			s.Config.CgroupPath = "/mnt/unified"
		}, "cgroup", OK, "as configured"},
		"tun with a daemon": {func(h *fakeHost, s *Subject) { delete(h.tree, "dev/net/tun"); s.Daemon = runs() }, "tun", OK, "the daemon has its TUN devices"},
		"AccECN":            {func(h *fakeHost, _ *Subject) { h.put("proc/sys/net/ipv4/tcp_ecn", "3\n") }, "sysctls", Failure, "tcp_ecn is 3"},
		"ECN accepted only": {func(h *fakeHost, _ *Subject) { h.put("proc/sys/net/ipv4/tcp_ecn", "5\n") }, "sysctls", OK, "asks for no ECN"},
		"no default route":  {func(h *fakeHost, _ *Subject) { h.devices[1].Default = false }, "devices", Warning, "no default route"},
		"device down":       {func(h *fakeHost, _ *Subject) { h.devices[1].Up = false }, "devices", Warning, "eth0: the device is down"},
		"port of a bridge": {func(h *fakeHost, s *Subject) {
			h.devices[2].Unoffering, s.Config.Devices = "is a port of br0: name that", []string{"eth1"}
		}, "devices", Warning, "eth1 is a port of br0: nothing is carried by it (address)"},
		"small MTU":           {func(h *fakeHost, _ *Subject) { h.devices[1].MTU = 576 }, "devices", Warning, "MTU 576"},
		"jumbo frames":        {func(_ *fakeHost, s *Subject) { s.Config.Devices = []string{"eth1"} }, "devices", OK, "4096 bytes in a packet, offloads are on"},
		"no TSO":              {func(h *fakeHost, _ *Subject) { h.devices[1].Off = []string{"tso"} }, "devices", OK, "offloads that are off: tso"},
		"veth without GRO":    {func(h *fakeHost, _ *Subject) { h.devices[1].Off, h.devices[1].Hardware = []string{"gro"}, false }, "devices", OK, "offloads that are off: gro"},
		"ports with a daemon": {func(_ *fakeHost, s *Subject) { s.Daemon = runs() }, "ports", OK, "the daemon has its UDP ports"},
		"hooks unknown":       {func(h *fakeHost, _ *Subject) { h.hooks[0].Err = fs.ErrPermission }, "hooks", Warning, "attached to sockops of /sys/fs/cgroup"},
		"hooks unknown, daemon": {func(h *fakeHost, s *Subject) {
			h.hooks, s.Daemon = []inspect.Hook{{Name: "sockops", Err: fs.ErrPermission}}, runs()
		}, "hooks", OK, "the daemon's programs are attached"},
		"hooks full, daemon": {func(h *fakeHost, s *Subject) { h.hooks[0].Programs, s.Daemon = make([]string, 64), runs() }, "hooks", Warning, "64 of 64 places"},
		"descriptors":        {func(h *fakeHost, _ *Subject) { h.put("proc/self/limits", "Max open files  1024  4096  files\n") }, "descriptors", Warning, "3776 connections can be carried instead of 20000"},
		"descriptors, few":   {func(h *fakeHost, _ *Subject) { h.put("proc/self/limits", "Max open files  256  400  files\n") }, "descriptors", Warning, "80 connections can be carried instead of 20000"},
		"descriptors enough": {func(h *fakeHost, _ *Subject) { h.put("proc/self/limits", "Max open files  1024  unlimited  files\n") }, "descriptors", OK, "any number of open files"},
		"no limits":          {func(h *fakeHost, _ *Subject) { delete(h.tree, "proc/self/limits") }, "memlock", Warning, "could not be read"},
		"memlock without adapters": {func(h *fakeHost, _ *Subject) {
			h.put("proc/self/status", "CapEff:\t000000c000001000\n")
			h.put("proc/self/limits", "Max locked memory  65536  65536  bytes\n")
		}, "memlock", OK, "may lock 64 KiB of memory; only RDMA adapters need more"},
		"clock unknown": {func(h *fakeHost, _ *Subject) {
			delete(h.tree, "sys/devices/system/clocksource/clocksource0/current_clocksource")
		}, "clock", OK, "unknown"},
		"MemoryMax": {func(h *fakeHost, s *Subject) {
			s.Daemon = runs()
			h.put("proc/4242/status", "CapEff:\t000000c000001000\n")
			h.put("proc/4242/cgroup", "1:cpu:/\n0::/system.slice/smcgw.service\n")
			h.put("sys/fs/cgroup/system.slice/smcgw.service/memory.max", "1073741824\n")
		}, "memory", Warning, "its control group may have 1024 MiB"},
		"no MemoryMax": {func(h *fakeHost, s *Subject) {
			s.Daemon = runs()
			h.put("proc/4242/status", "CapEff:\t000000c000001000\n")
			h.put("proc/4242/cgroup", "0::/system.slice/smcgw.service\n")
			h.put("sys/fs/cgroup/system.slice/smcgw.service/memory.max", "max\n")
		}, "memory", OK, "has 16384 MiB available"},
		"another daemon": {func(_ *fakeHost, s *Subject) { s.Others = []string{"gateway of process 7"} }, "daemon", Warning, "there is another: gateway of process 7"},
		"no meminfo":     {func(h *fakeHost, _ *Subject) { delete(h.tree, "proc/meminfo") }, "memory", OK, "unknown"},
		"an adapter": {func(h *fakeHost, _ *Subject) {
			h.rdma = sysfs.RDMA{Memlock: -1, Adapters: []sysfs.Adapter{{Name: "mlx5_0", Ports: []sysfs.Port{{Number: 1, State: "ACTIVE", Rate: "100 Gb/sec"}}}}}
		}, "rdma", OK, "mlx5_0/1: ACTIVE, 100 Gb/sec"},
		"an adapter that is not wanted": {func(h *fakeHost, s *Subject) {
			s.Config.Carriers = []report.DeviceKind{report.DeviceSoft}
			h.rdma = sysfs.RDMA{Memlock: -1, Adapters: []sysfs.Adapter{{Name: "mlx5_0", Ports: []sysfs.Port{{Number: 1, Unusable: "the port is DOWN"}}}}}
		}, "rdma", OK, "nor is it to be"},
		"process": {func(h *fakeHost, _ *Subject) { h.put("proc/77/comm", "firewalld\n") }, "agents", OK, "firewalld (process firewalld)"},
		"socket":  {func(h *fakeHost, _ *Subject) { h.put("proc/net/unix", "0: 2 0 10000 0001 01 180 /run/docker.sock\n") }, "agents", OK, "Docker (socket /run/docker.sock)"},
		"ambient": {func(h *fakeHost, _ *Subject) { h.put("proc/77/comm", "ztunnel\n") }, "agents", Warning, "Istio ambient"},
		"rules of no known agent": {func(h *fakeHost, _ *Subject) {
			h.chains = []Chain{{"fw", "in"}, {"fw", "out"}, {"filter", "ufw-user-input"}, {"filter", "INPUT"}}
		}, "agents", OK, "rules of nftables (table fw): they decide"},
		"ufw":                        {func(h *fakeHost, _ *Subject) { h.chains = []Chain{{"filter", "ufw-user-input"}} }, "agents", OK, "ufw (rules ufw-user-input)"},
		"notes of the configuration": {func(_ *fakeHost, s *Subject) { s.ConfigFile, s.ConfigNotes = "a.yaml", []string{"no rule"} }, "config", Warning, "no rule"},
		"daemon":                     {func(_ *fakeHost, s *Subject) { s.Daemon = runs() }, "daemon", OK, "version 1.2.3, mode enforce"},
		"daemon not to be asked":     {func(_ *fakeHost, s *Subject) { s.Daemon = &Daemon{Problem: "permission denied"} }, "daemon", Warning, "cannot be asked: permission denied"},
		"another version":            {func(_ *fakeHost, s *Subject) { s.Daemon, s.Version = runs(), "1.3.0" }, "daemon", Warning, "the daemon has version 1.2.3, this program 1.3.0"},
		"off by the configuration": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Config.Mode = runs(), report.ModeOff
			s.Daemon.Status.Mode = report.ModeOff
		}, "daemon", Warning, "the configuration switches"},
		"off": {func(_ *fakeHost, s *Subject) { s.Daemon = runs(); s.Daemon.Status.Mode = report.ModeOff }, "daemon", Warning, "switched off"},
		"degraded": {func(_ *fakeHost, s *Subject) {
			s.Daemon = runs()
			s.Daemon.Status.Degraded = []string{"device_failed"}
		}, "daemon", Failure, "degraded: device_failed: A device, queue pair or port"},
		"note":       {func(_ *fakeHost, s *Subject) { s.Daemon = runs(); s.Daemon.Status.Notes = []string{"devices: none"} }, "daemon", Warning, "devices: none"},
		"flow limit": {func(_ *fakeHost, s *Subject) { s.Daemon = runs(); s.Daemon.Status.FlowLimit.Now = 900 }, "daemon", Warning, "900 connections can be carried instead of 20000"},
		"device": {func(_ *fakeHost, s *Subject) {
			s.Daemon = runs()
			s.Daemon.Devices = []report.DeviceInfo{{Name: "soft0", State: report.DeviceFailed, Error: "bind: address already in use"}}
		}, "daemon", Warning, "device soft0 is failed: bind: address already in use"},
		"peer refuses soft": {func(h *fakeHost, s *Subject) {
			h.refuses, s.Peer = true, &Peer{Address: netip.MustParseAddr("fd00::2")}
		}, "peer", Warning, "nothing receives on UDP port 4791"},
		"peer unreachable": {func(h *fakeHost, s *Subject) {
			h.refusesErr, s.Peer = errors.New("no route"), &Peer{Address: netip.MustParseAddr("fd00::2")}
		}, "peer", Failure, "[fd00::2]:4791: no route"},
		"peer silent": {func(_ *fakeHost, s *Subject) { s.Peer = &Peer{Address: netip.MustParseAddr("10.0.0.2")} }, "peer", OK, "is not refused"},
		"peer carried": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Peer = runs(), &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Carrier: report.CarrierSoft}
		}, "peer", OK, "was carried by rdma-soft"},
		"peer without a daemon": {func(_ *fakeHost, s *Subject) { s.Peer = &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80} }, "peer", Warning, "no connection was tried"},
		"peer failed": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Peer = runs(), &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Problem: "connection refused"}
		}, "peer", Failure, "connection refused"},
		"peer remembered": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Peer = runs(), &Peer{Address: netip.MustParseAddr("10.0.0.2")}
			s.Daemon.Peers = []report.PeerInfo{{Address: s.Peer.Address, State: report.PeerBlackholed, Reason: "option_blackholed"}}
		}, "peer", Warning, "remembered as blackholed, option_blackholed"},
		"carrier remembered": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Peer = runs(), &Peer{Address: netip.MustParseAddr("10.0.0.2")}
			s.Daemon.Peers = []report.PeerInfo{{Address: s.Peer.Address, State: report.PeerCapable, CarriersFailed: []report.Carrier{report.CarrierSoft}}}
		}, "peer", Warning, "not reached by rdma-soft"},
		"proved": {func(_ *fakeHost, s *Subject) {
			s.Daemon, s.Peer = runs(), &Peer{Address: netip.MustParseAddr("10.0.0.2")}
			s.Daemon.Peers = []report.PeerInfo{{Address: s.Peer.Address, State: report.PeerCapable, Carriers: []report.Carrier{report.CarrierSoft}}}
		}, "peer", OK, "has been reached by rdma-soft"},
	} {
		t.Run(name, func(t *testing.T) {
			h, s := healthyHost(t), subjectOf()
			c.change(h, &s)
			l := line(t, Examine(t.Context(), h, s), c.check, c.state)
			for _, found := range Examine(t.Context(), h, s).Lines {
				if found.Check == c.check && found.State == c.state && strings.Contains(found.Text, c.want) {
					l = found
				}
			}
			require.Contains(t, l.Text, c.want)
			require.Equal(t, c.state == OK, l.Remedy == "", "a remedy belongs to what is not ok: %+v", l)
		})
	}
}

// TestOtherNamespaces: what runs in another network namespace does not count.
func TestOtherNamespaces(t *testing.T) {
	h := healthyHost(t)
	h.put("proc/77/comm", "firewalld\n")
	h.tree["proc/77/ns/net"] = link("net:[4026532000]")
	require.Equal(t, "no firewall, mesh or container engine that is known", line(t, Examine(t.Context(), h, subjectOf()), "agents", OK).Text)
}

// TestSoftPortOfThePeer: the port is that of the configuration, without soft there is none.
func TestSoftPortOfThePeer(t *testing.T) {
	h, s := healthyHost(t), subjectOf()
	s.Config.Soft.UDPPort, s.Peer = 4795, &Peer{Address: netip.MustParseAddr("10.0.0.2")}
	Examine(t.Context(), h, s)
	require.Equal(t, netip.MustParseAddrPort("10.0.0.2:4795"), h.asked)
	h.asked = netip.AddrPort{}
	s.Config.Carriers = []report.DeviceKind{report.DeviceShm}
	Examine(t.Context(), h, s)
	require.False(t, h.asked.IsValid())
}

// TestPeerThatIsReached: a connection that a device carried says more than a probe of a port,
// which need not be that of the peer.
func TestPeerThatIsReached(t *testing.T) {
	for _, carrier := range []report.Carrier{report.CarrierSoft, report.CarrierShm, report.CarrierHW} {
		h, s := healthyHost(t), subjectOf()
		h.refuses, s.Daemon = true, runs()
		s.Peer = &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Carrier: carrier}
		r := Examine(t.Context(), h, s)
		for _, l := range r.Lines {
			require.True(t, l.Check != "peer" || l.State == OK, "%+v", l)
		}
		require.Equal(t, "10.0.0.2, port 80: a connection was carried by "+string(carrier), line(t, r, "peer", OK).Text)
	}
	h, s := healthyHost(t), subjectOf()
	h.refuses, s.Daemon = true, runs()
	s.Peer = &Peer{Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Carrier: report.CarrierRelay}
	require.Contains(t, line(t, Examine(t.Context(), h, s), "peer", Warning).Remedy, "unless its soft.udp_port is another")
}

// TestThisHost: every check says something of the host of the tests, without privileges too.
func TestThisHost(t *testing.T) {
	r := Examine(t.Context(), This(), subjectOf())
	seen := map[string]bool{}
	for _, l := range r.Lines {
		seen[l.Check] = true
		require.NotEmpty(t, l.Text)
	}
	for _, c := range checks() {
		require.Equal(t, c.name != "peer", seen[c.name], c.name)
	}
}

// FuzzFiles: whatever the files say, an examination ends.
func FuzzFiles(f *testing.F) {
	names := []string{
		"proc/self/status", "proc/self/limits", "proc/self/mountinfo", "proc/meminfo", "proc/net/udp", "proc/net/unix",
		"proc/sys/net/ipv4/tcp_ecn", "proc/1/comm",
	}
	h := healthyHost(f)
	for i, name := range names {
		f.Add(byte(i), string(h.tree[name].Data))
	}
	f.Fuzz(func(t *testing.T, i byte, text string) {
		h := healthyHost(t)
		h.put(names[int(i)%len(names)], text)
		r := Examine(t.Context(), h, subjectOf())
		require.GreaterOrEqual(t, len(r.Lines), len(checks())-1)
	})
}

// fakeHost is a tree of files, and a few answers.
type fakeHost struct {
	tree       fstest.MapFS
	features   []inspect.Feature
	hooks      []inspect.Hook
	devices    []Device
	chains     []Chain
	rdma       sysfs.RDMA
	refuses    bool
	refusesErr error
	err        error // of everything that can be listed
	asked      netip.AddrPort
}

var _ Probes = (*fakeHost)(nil)

// healthyHost has everything.
func healthyHost(t testing.TB) *fakeHost {
	t.Helper()
	a, err := txtar.ParseFile("testdata/healthy.txtar")
	require.NoError(t, err)
	h := &fakeHost{
		tree:     fstest.MapFS{"proc/self/ns/net": link("net:[4026531840]"), "proc/1/ns/net": link("net:[4026531840]")},
		features: []inspect.Feature{{Name: "program type SockOps"}, {Name: "map type RingBuf"}},
		hooks: []inspect.Hook{
			{Name: "sockops of /sys/fs/cgroup"},
			{Name: "tcx ingress of eth0", Programs: []string{"other"}},
		},
		devices: []Device{
			{Name: "lo", MTU: 65536, Up: true, Unoffering: "is the loopback device: name another"},
			{Name: "eth0", MTU: 1500, Up: true, Default: true, Hardware: true},
			{Name: "eth1", MTU: 9000, Up: true},
		},
	}
	for _, f := range a.Files {
		h.tree[f.Name] = &fstest.MapFile{Data: f.Data, Mode: 0o444}
	}
	return h
}

// link is a symbolic link.
func link(to string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(to), Mode: 0o777 | fs.ModeSymlink}
}

// put changes a file.
func (h *fakeHost) put(name, text string) { h.tree[name] = &fstest.MapFile{Data: []byte(text)} }

func (h *fakeHost) Files() fs.FS { return h.tree }

func (h *fakeHost) Features() ([]inspect.Feature, error) { return h.features, h.err }

func (h *fakeHost) Hooks(string, []string) []inspect.Hook { return h.hooks }

func (h *fakeHost) Devices(bool) ([]Device, error) { return h.devices, h.err }

func (h *fakeHost) Chains() ([]Chain, error) { return h.chains, h.err }

func (h *fakeHost) RDMA() (sysfs.RDMA, error) { return h.rdma, h.err }

func (h *fakeHost) Refuses(_ context.Context, to netip.AddrPort) (bool, error) {
	h.asked = to
	return h.refuses, h.refusesErr
}

// subjectOf is a gateway with defaults, before it runs.
func subjectOf() Subject {
	return Subject{
		Config: config.Config{}.WithDefaults(), Version: "1.2.3",
		Capabilities: []process.Capability{
			{Number: 12, Name: "CAP_NET_ADMIN", For: "devices"}, {Number: 39, Name: "CAP_BPF", For: "programs"},
			{Number: 38, Name: "CAP_PERFMON", For: "pointers"}, {Number: 19, Name: "CAP_SYS_PTRACE", For: "programs in process", Optional: true},
		},
	}
}

// TestDiagnosis: what is ok is left out, causes are counted by reason and side.
func TestDiagnosis(t *testing.T) {
	native := func(reason, by string) report.ConnInfo {
		return report.ConnInfo{Reason: reason, DecidedBy: by, End: report.EndNative}
	}
	d := Diagnose(
		Report{Lines: []Line{{"tun", OK, "there", ""}, {"sysctls", Failure, "timestamps are off", "switch them on"}}},
		[]report.ConnInfo{
			native("policy", report.DecidedLocal), native("policy", report.DecidedRemote), native("no_memory", report.DecidedRemote),
			native("no_memory", report.DecidedRemote),
			{Carrier: "rdma-shm", State: "carrying"},
		},
		[]report.ConnInfo{{End: report.EndClosed}, {End: report.EndAborted, Reason: "peer_dead", DecidedBy: report.DecidedLocal}},
	)
	var text, doc bytes.Buffer
	require.NoError(t, d.Text(&text))
	golden.File(t, "diagnosis.txt", text.String())
	enc := json.NewEncoder(&doc)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(d))
	golden.File(t, "diagnosis.json", doc.String())

	text.Reset()
	d = Diagnose(Report{}, nil, nil)
	require.NoError(t, d.Text(&text))
	require.Equal(t, "nothing stands out\n", text.String())
}

func TestProgram(t *testing.T) {
	number := int64(0)
	for name, r := range map[string]scan.Result{
		"promotable": {Program: "/usr/bin/server", Arch: scan.X86_64, Libc: scan.Glibc, Reasons: []scan.Reason{}, Scanned: 15},
		"raw": {
			Program: "/usr/bin/python3", Arch: scan.X86_64, Libc: scan.Musl, Scanned: 3, Missing: []string{"libx.so.1"},
			Reasons: []scan.Reason{scan.RawCalls, scan.Missing},
			Objects: []scan.Object{{Path: "/usr/lib/liby.so", Entries: 7, Counted: 6, Reasons: []scan.Reason{scan.RawCalls}, Sites: []scan.Site{
				{Offset: 0x1234, Address: 0x401234, Symbol: "y_read", Number: &number, Call: "read"}, {Offset: 0x2000}, {Offset: 0x2001}, {Offset: 0x2002}, {Offset: 0x2003},
			}}},
		},
		"static": {Program: "/bin/busybox", Arch: scan.X86_64, Reasons: []scan.Reason{scan.Static, scan.GoRuntime}, Scanned: 1},
	} {
		path := r.Program
		if name == "raw" {
			path = "/usr/bin/tool"
		}
		p := ExamineProgram(path, &r, "/usr/lib/smcgw/libsmcgw.so")
		require.Equal(t, len(r.Reasons) == 0, p.Answer == Promotable)
		require.Equal(t, name == "static", p.Library == "")
		var text, doc bytes.Buffer
		require.NoError(t, p.Text(&text))
		golden.File(t, "program-"+name+".txt", text.String())
		enc := json.NewEncoder(&doc)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		require.NoError(t, enc.Encode(p))
		golden.File(t, "program-"+name+".json", doc.String())
	}
	p := ExamineProgram("", &scan.Result{Libc: scan.Glibc}, "")
	require.Contains(t, p.Hints[0], "not installed")
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// chainMessage is a message of the kernel: struct nfgenmsg, then attributes, each padded to
// four bytes.
func chainMessage(table, name string) []byte {
	m := []byte{2, 0, 0, 0}
	for _, a := range []struct {
		kind  uint16
		value string
	}{{attrTable, table + "\x00"}, {2, "12345678"}, {attrName, name + "\x00"}} {
		m = binary.NativeEndian.AppendUint16(m, uint16(4+len(a.value)))
		m = binary.NativeEndian.AppendUint16(m, a.kind)
		m = append(m, a.value...)
		for len(m)%4 != 0 {
			m = append(m, 0)
		}
	}
	return m
}

func TestChain(t *testing.T) {
	c, err := parseChain(chainMessage("firewalld", "filter_INPUT"))
	require.NoError(t, err)
	require.Equal(t, Chain{Table: "firewalld", Name: "filter_INPUT"}, c)
}

func TestChainTruncated(t *testing.T) {
	m := chainMessage("nat", "DOCKER7") // its last attribute has no padding
	for n := range m {
		_, err := parseChain(m[:n])
		require.ErrorIs(t, err, errChain, n)
	}
}

func FuzzChain(f *testing.F) {
	f.Add(chainMessage("nat", "KUBE-SERVICES"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, m []byte) {
		c, err := parseChain(m)
		if err == nil {
			require.NotEmpty(t, c.Table)
			require.NotEmpty(t, c.Name)
		}
	})
}
