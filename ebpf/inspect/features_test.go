package inspect_test

import (
	"os"
	"strings"
	"testing"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/testnet"
)

// What is asked of the kernel comes from the programs, but for the helper that they do
// without.
func TestNeededFeatures(t *testing.T) {
	spec, err := ebpf.Spec()
	require.NoError(t, err)
	var names []string
	for _, f := range inspect.Features(spec) {
		names = append(names, f.Name)
	}
	for _, want := range []string{
		"program type SchedCLS", "program type SockOps", "program type CGroupSockAddr", "program type SkLookup", "program type Syscall",
		"helper ReserveHdrOpt in SockOps", "map type RingBuf",
	} {
		require.Contains(t, names, want)
	}
	require.NotContains(t, names, "helper SkbGetXfrmState in SchedCLS")
}

// The kernel that runs the programs has what they need.
func TestFeaturesOfThisKernel(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	spec, err := ebpf.Spec()
	require.NoError(t, err)
	list := inspect.Features(spec)
	require.Greater(t, len(list), 30)
	for _, f := range list {
		require.NoError(t, f.Err, f.Name)
	}
}

// Hooks count the programs of others, up to the room that the kernel has; objects are those
// of gateways only.
func TestHooks(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(mount, "smcgw-hooks-") //nolint:usetesting // a cgroup
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	prog, err := bpf.NewProgram(&bpf.ProgramSpec{
		Name: "someone_else", Type: bpf.SockOps, AttachType: bpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	require.NoError(t, err)
	defer prog.Close()
	var links []link.Link
	defer func() {
		for _, l := range links {
			require.NoError(t, l.Close())
		}
	}()
	attach := func() error {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: bpf.AttachCGroupSockOps, Program: prog})
		if err == nil {
			links = append(links, l)
		}
		return err
	}
	require.NoError(t, attach())
	hooks := inspect.Hooks(dir, []string{"lo", "nosuch0"})
	require.Len(t, hooks, 7)
	byName := map[string]inspect.Hook{}
	for _, h := range hooks {
		byName[strings.ReplaceAll(h.Name, dir, "DIR")] = h
	}
	require.Equal(t, []string{"someone_else"}, byName["sockops of DIR"].Programs)
	require.Empty(t, byName["connect4 of DIR"].Programs)
	require.NoError(t, byName["tcx ingress of lo"].Err)
	require.Error(t, byName["tcx egress of nosuch0"].Err)
	for range inspect.HookRoom - 1 {
		require.NoError(t, attach())
	}
	require.Len(t, inspect.Hooks(dir, nil)[2].Programs, inspect.HookRoom)
	require.Error(t, attach(), "the room is as large as said")
	require.Error(t, inspect.Hooks(dir+"/gone", nil)[0].Err)

	objects, err := inspect.Objects()
	require.NoError(t, err)
	for _, o := range objects {
		require.True(t, strings.HasPrefix(o.Name, "smcgw_"), o.Name)
	}
}
