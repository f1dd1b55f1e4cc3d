package interop

import (
	"context"
	"debug/elf"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/adapter"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// adapterProgram is the path of the suite in the guest.
const adapterProgram = "/bin/adapter.test"

// TestAdapter runs the suite that every device must pass on the kernel's rdma_rxe, through libibverbs.
func TestAdapter(t *testing.T) {
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	ctx := patience(t, 20*time.Minute)
	g := adapterGuest(ctx, t)
	run := "^(TestConformance|TestAllocations)$"
	if !thorough() {
		run += "/^(Device|State|Write|Send|CQ|Loop|UD)$"
	}
	args := []string{"env", adapter.Variable + "=" + guest.Device, adapterProgram, "-test.v", "-test.run", run}
	out, err := g.Run(ctx, args[0], args[1:]...)
	require.NoError(t, err)
	require.Contains(t, out, "--- PASS: TestConformance")
	require.Contains(t, out, "--- PASS: TestAllocations")
	t.Logf("%d rules hold", strings.Count(out, "        --- PASS: "))
	nothingLeft(ctx, t, g)
	absences(ctx, t, g)
}

// resources are the kinds of adapter objects that the kernel lists.
const resources = "cm_id qp cq mr pd srq ctx"

// nothingLeft requires that the adapter has no objects but the kernel's own.
func nothingLeft(ctx context.Context, t *testing.T, g *guest.Guest) {
	t.Helper()
	for kind := range strings.FieldsSeq(resources) {
		out, err := g.Run(ctx, "rdma", "res", "show", kind)
		require.NoError(t, err)
		for line := range strings.Lines(out) {
			if line = strings.TrimSpace(line); line != "" {
				require.Contains(t, line, "comm [", "an object that is left")
			}
		}
	}
}

// absences removes what the device needs, from the inside out, and requires the right error for each.
func absences(ctx context.Context, t *testing.T, g *guest.Guest) {
	t.Helper()
	for _, step := range []struct{ away, adapter, class string }{
		{"", "none0", "ErrNoDevice"},
		{"mv /etc/libibverbs.d /etc/away", guest.Device, "ErrProviderAbsent"},
		{"mv /usr/lib/x86_64-linux-gnu/libibverbs.so.1 /tmp", guest.Device, "ErrLibraryAbsent"},
	} {
		_, err := g.Run(ctx, "sh", "-c", step.away)
		require.NoError(t, err)
		out, err := g.Run(ctx, "env", adapter.Variable+"="+step.adapter, adapter.AbsenceVariable+"="+step.class, adapterProgram,
			"-test.v", "-test.run", "^TestAbsence$")
		require.NoError(t, err, "%s", step.class)
		require.Contains(t, out, "--- PASS: TestAbsence")
	}
}

// adapterGuest starts a guest with the suite.
func adapterGuest(ctx context.Context, t *testing.T) *guest.Guest {
	file := filepath.Join(t.TempDir(), "adapter.test")
	build(ctx, t, "1", "test", "-c", "-o", file, "github.com/smcgw/smcgw/tests/interop/adapter")
	return bootWith(ctx, t, guest.Linux612, guest.Config{Files: map[string]string{adapterProgram: file}}).guest
}

// build runs the go command with cgo, for adapters, or without. The flags are those of make build-hw and make build,
// since all packages would be compiled once more for others.
func build(ctx context.Context, t *testing.T, cgo string, args ...string) {
	t.Helper()
	flags := []string{"-trimpath", "-ldflags", "-s -w"}
	if cgo == "1" {
		flags = append(flags, "-tags", "hw,netgo,osusergo")
	}
	cmd := exec.CommandContext(ctx, "go", slices.Insert(args, 1, flags...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED="+cgo)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// libraries returns the shared libraries without which a program cannot start.
func libraries(t *testing.T, file string) []string {
	t.Helper()
	f, err := elf.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	return libs
}

// TestLibraries checks that the program with adapters needs only libc, in particular no RDMA library, and without
// adapters nothing at all.
func TestLibraries(t *testing.T) {
	testnet.Require(t, "gcc")
	ctx, dir := patience(t, 10*time.Minute), t.TempDir()
	for _, c := range []struct {
		name, cgo string
		want      []string
	}{
		{"smcgw", "0", nil},
		{"smcgw-hw", "1", []string{"libc.so.6"}},
	} {
		file := filepath.Join(dir, c.name)
		build(ctx, t, c.cgo, "build", "-o", file, "github.com/smcgw/smcgw/cmd/smcgw")
		require.Equal(t, c.want, libraries(t, file), c.name)
	}
}
