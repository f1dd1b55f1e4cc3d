package sysfs

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestTrees compares everything that is read of each tree.
func TestTrees(t *testing.T) {
	for _, file := range trees(t) {
		h, err := kernelOf(loadTree(t, file)).read()
		require.NoError(t, err, file)
		doc, err := json.MarshalIndent(h, "", "  ")
		require.NoError(t, err)
		golden.File(t, strings.TrimSuffix(filepath.Base(file), ".tree")+".json", string(doc)+"\n")
	}
}

// TestUnusable: the reason that stays comes before the one that may go.
func TestUnusable(t *testing.T) {
	h, err := kernelOf(loadTree(t, "testdata/bnxt_re.tree")).read()
	require.NoError(t, err)
	a := &h.Adapters[0]
	p := &a.Ports[0]
	require.Empty(t, p.Unusable)
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() { a.Verbs = &Node{Path: "/dev/infiniband/uverbs0", Problem: problem(unix.EPERM)} }, "DeviceAllow=char-infiniband_verbs"},
		{func() { a.Verbs = nil }, "ib_uverbs"},
		{func() { p.GIDs = []GID{{Type: IBorRoCEv1}} }, "no GID of type RoCE v2"},
		{func() { p.State = "DOWN" }, "the port is DOWN"},
		{func() { p.LinkLayer = "Unknown" }, `link layer is "Unknown"`},
		{func() { a.Node = "usNIC" }, `"usNIC"`},
		{func() { a.Driver = "efa" }, "EFA"},
		{func() { a.Node = nodeRNIC }, "iWARP"},
	} {
		step.change()
		require.Contains(t, a.unusable(p), step.want)
	}
}

func TestHints(t *testing.T) {
	k := kernelOf(loadTree(t, "testdata/mlx5.tree"))
	k.memlock = func() int64 { return 64 << 10 }
	h, err := k.read()
	require.NoError(t, err)
	require.Equal(t, []string{
		"locked memory is limited to 64 KiB (ulimit -l, LimitMEMLOCK): registrations beyond it fail with no_memory",
		"mlx5_0: a control group limits hca_handle to 64 (rdma.max)",
		"mlx5_0: a control group limits hca_object to 2000 (rdma.max)",
		"mlx5_0/1: the port pauses no priority (PFC): RoCE works, and loses packets where the network is congested",
	}, h.Hints())
	k.priorities = func(device string) *Priorities {
		require.Contains(t, []string{"ens1f0", "ens1f1"}, device)
		return &Priorities{PFC: []int{3}}
	}
	h, err = k.read()
	require.NoError(t, err)
	require.Len(t, h.Hints(), 3)

	h, err = kernelOf(loadTree(t, "testdata/rxe.tree")).read()
	require.NoError(t, err)
	require.Empty(t, h.Hints(), "software pauses nothing")
	h.Adapters = nil
	h.Memlock = 0
	require.Empty(t, h.Hints(), "without adapters")
}

// TestInfiniBandPort: paths come from the kernel's connection manager, and what makes RoCE
// lose packets is no matter there.
func TestInfiniBandPort(t *testing.T) {
	k := kernelOf(loadTree(t, "testdata/ib.tree"))
	h, err := k.read()
	require.NoError(t, err)
	require.Empty(t, h.Adapters[0].Ports[0].Unusable)
	require.Equal(t, []string{"mlx5_0/1: its link layer is InfiniBand: used where carriers has ib, which no adapter has proved"}, h.Hints())
	k.access = func(name string) error {
		if name == "/dev/infiniband/rdma_cm" {
			return unix.ENOENT
		}
		return nil
	}
	h, err = k.read()
	require.NoError(t, err)
	require.Contains(t, h.Adapters[0].Ports[0].Unusable, "rdma_ucm")
	gid, err := IPoIB(1)
	require.NoError(t, err)
	require.Zero(t, gid, "the loopback device")
	_, err = IPoIB(1 << 30)
	require.Error(t, err)
}

// TestNoAdapters: most hosts.
func TestNoAdapters(t *testing.T) {
	h, err := kernelOf(fstest.MapFS{"sys/class/net/lo/mtu": {}}).read()
	require.NoError(t, err)
	require.Empty(t, h.Adapters)
	require.Empty(t, h.Namespaces)
}

// TestRead: this host, whatever it has.
func TestRead(t *testing.T) {
	h, err := Read()
	require.NoError(t, err)
	entries, _ := os.ReadDir("/sys/class/infiniband")
	require.Len(t, h.Adapters, len(entries))
	ports, err := RoCE()
	require.NoError(t, err)
	if len(entries) == 0 {
		require.Empty(t, ports)
	}
}

func TestLocked(t *testing.T) {
	require.EqualValues(t, 65536, locked(0, 65536))
	require.EqualValues(t, -1, locked(1<<unix.CAP_IPC_LOCK, 65536))
	require.EqualValues(t, -1, locked(0, unix.RLIM_INFINITY))
	memlock()
}

func TestAccess(t *testing.T) {
	require.Empty(t, problem(access("/dev/null")))
	require.Contains(t, problem(access("/dev/infiniband/none")), "container")
	require.Contains(t, problem(unix.EACCES), "permission")
	require.Equal(t, unix.EIO.Error(), problem(unix.EIO))
}

// TestBroken: no attribute that is cut, missing, or has a wrong value takes more
// than what it says itself.
func TestBroken(t *testing.T) {
	for _, file := range trees(t) {
		whole := loadTree(t, file)
		for _, name := range slices.Sorted(maps.Keys(whole)) {
			for _, value := range []string{"", "\x00", "-1", ": ", "0x", strings.Repeat("9", 100), "fe80::1%eth0"} {
				read(t, whole, name, &fstest.MapFile{Mode: whole[name].Mode, Data: []byte(value)})
			}
			for n := range whole[name].Data {
				read(t, whole, name, &fstest.MapFile{Mode: whole[name].Mode, Data: whole[name].Data[:n]})
			}
			read(t, whole, name, nil)
		}
	}
}

// read reads a tree with another value of one attribute.
func read(t *testing.T, whole fstest.MapFS, name string, f *fstest.MapFile) {
	t.Helper()
	had := whole[name]
	defer func() { whole[name] = had }()
	if f == nil {
		delete(whole, name)
	} else {
		whole[name] = f
	}
	h, err := kernelOf(whole).read()
	require.NoError(t, err)
	bounded(t, h)
}

func bounded(t *testing.T, h RDMA) {
	t.Helper()
	for i := range h.Adapters {
		for j := range h.Adapters[i].Ports {
			p := &h.Adapters[i].Ports[j]
			require.LessOrEqual(t, p.Number, maxPorts)
			for k := range p.GIDs {
				require.Less(t, p.GIDs[k].Index, maxGIDs)
				require.True(t, p.GIDs[k].GID.Is6())
			}
		}
	}
	h.Hints()
}

// FuzzAttribute: an attribute of a tree has any value.
func FuzzAttribute(f *testing.F) {
	f.Add("sys/class/infiniband_verbs/uverbs0/ibdev", []byte("mlx5_0"))
	f.Add("sys/fs/cgroup/rdma.max", []byte("mlx5_0 hca_handle=1 x=2\n\nmlx5_0"))
	f.Add("proc/self/cgroup", []byte("0::/.."))
	f.Add("sys/class/infiniband/x/ports/1/gids/0", []byte("::ffff:10.0.0.1"))
	whole := loadTree(f, "testdata/mlx5.tree")
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		m := maps.Clone(whole)
		if !fs.ValidPath(name) || len(value) > 4096 {
			t.Skip()
		}
		m[name] = &fstest.MapFile{Mode: 0o444, Data: value}
		h, err := kernelOf(m).read()
		if err == nil {
			bounded(t, h)
		}
	})
}
