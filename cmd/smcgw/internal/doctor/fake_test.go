package doctor

import (
	"context"
	"io/fs"
	"net/netip"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

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

// Files implements Probes.
func (h *fakeHost) Files() fs.FS { return h.tree }

// Features implements Probes.
func (h *fakeHost) Features() ([]inspect.Feature, error) { return h.features, h.err }

// Hooks implements Probes.
func (h *fakeHost) Hooks(string, []string) []inspect.Hook { return h.hooks }

// Devices implements Probes.
func (h *fakeHost) Devices(bool) ([]Device, error) { return h.devices, h.err }

// Chains implements Probes.
func (h *fakeHost) Chains() ([]Chain, error) { return h.chains, h.err }

// RDMA implements Probes.
func (h *fakeHost) RDMA() (sysfs.RDMA, error) { return h.rdma, h.err }

// Refuses implements Probes.
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
