package main

import (
	"context"
	"io/fs"
	"net/netip"
	"testing/fstest"

	"github.com/smcgw/smcgw/cmd/smcgw/internal/doctor"
	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// fakeHost is what doctor examines in scripts.
type fakeHost struct {
	tree fstest.MapFS
	rdma sysfs.RDMA
}

var _ doctor.Probes = (*fakeHost)(nil)

// healthyHost has what a gateway needs.
func healthyHost() *fakeHost {
	h := &fakeHost{tree: fstest.MapFS{}}
	for name, text := range map[string]string{
		"proc/sys/kernel/osrelease": "6.12.0", "proc/self/status": "CapEff:\t000001ffffffffff\n", "dev/net/tun": "", "proc/meminfo": "MemAvailable: 4194304 kB\n",
		"proc/self/mountinfo": "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/limits":    "Max open files  1024  1048576  files\nMax locked memory  unlimited  unlimited  bytes\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
	} {
		h.tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return h
}

// brokenHost lacks TUN devices.
func brokenHost() *fakeHost {
	h := healthyHost()
	delete(h.tree, "dev/net/tun")
	return h
}

func (h *fakeHost) Files() fs.FS { return h.tree }

func (*fakeHost) Features() ([]inspect.Feature, error) {
	return []inspect.Feature{{Name: "map type RingBuf"}}, nil
}

func (*fakeHost) Hooks(string, []string) []inspect.Hook {
	return []inspect.Hook{{Name: "sockops of /sys/fs/cgroup"}}
}

func (*fakeHost) Devices(bool) ([]doctor.Device, error) {
	return []doctor.Device{{Name: "eth0", MTU: 9000, Up: true, Default: true}}, nil
}

func (*fakeHost) Chains() ([]doctor.Chain, error) { return nil, nil }

// Refuses implements doctor.Probes: one host does.
func (*fakeHost) Refuses(_ context.Context, to netip.AddrPort) (bool, error) {
	return to.Addr() == netip.MustParseAddr("10.0.0.9"), nil
}

func (h *fakeHost) RDMA() (sysfs.RDMA, error) { return h.rdma, nil }
