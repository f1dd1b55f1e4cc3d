package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// residue is everything that a gateway could leave on a host: its footprint, and sockets, files and kernel settings.
type residue struct {
	footprint
	sockets, files, sysctls []string
	rendezvous              int // shm's sockets, of all hosts
}

// watchedSettings matches the kernel settings that a gateway changes, or could. Settings of the whole machine are
// left out: another test may change them.
const watchedSettings = `\.(accept_local|rp_filter|forwarding|arp_ignore|accept_ra|disable_ipv6|addr_gen_mode)( |$)|^net.ipv4.(ip_nonlocal_bind|tcp_[^a]|tcp_a[^lv])`

// residue takes stock of a host. It looks for files in the test's directory, except logs and configurations, and for
// files named after smcgw in the usual places.
func (w *world) residue(h *testnet.Host) (r residue) {
	w.t.Helper()
	r.footprint = w.footprint(h)
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	out, err := h.Run(ctx, "ss", "-H", "-l", "-n", "-t", "-u", "-w")
	require.NoError(w.t, err)
	for line := range strings.Lines(out) {
		r.sockets = append(r.sockets, strings.Join(strings.Fields(line), " "))
	}
	out, err = h.Run(ctx, "sysctl", "-a", "-r", watchedSettings)
	require.NoError(w.t, err)
	r.sysctls = slices.Collect(strings.Lines(out))
	require.NotEmpty(w.t, r.sysctls)
	require.NoError(w.t, filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(w.dir, path)
		switch ext := filepath.Ext(path); {
		case err != nil, d.IsDir(), ext == ".log", ext == ".yaml", ext == ".lock": // the lock file stays, empty
		case strings.HasPrefix(name, h.Name):
			r.files = append(r.files, name)
		case strings.HasPrefix(name, "shm/"): // those of all hosts
			r.rendezvous++
		}
		return err
	}))
	slices.Sort(r.sockets)
	slices.Sort(r.files)
	return r
}

// kernelObjects returns the programs, links and maps that a process holds, by kind.
func kernelObjects(t *testing.T, pid int) map[string][]int {
	t.Helper()
	objects := map[string][]int{}
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	require.NoError(t, err)
	for _, path := range infos {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			kind, ok := strings.CutSuffix(name, "_id")
			if id, err := strconv.Atoi(strings.TrimSpace(value)); ok && err == nil && slices.Contains([]string{"prog", "map", "link"}, kind) {
				objects[kind] = append(objects[kind], id)
			}
		}
	}
	return objects
}

// stillThere returns the objects that the kernel still has.
func stillThere(t *testing.T, objects map[string][]int) (list []string) {
	t.Helper()
	for kind, ids := range objects {
		out, err := exec.CommandContext(t.Context(), "bpftool", "-j", kind, "show").Output()
		require.NoError(t, err)
		var have []struct{ ID int }
		require.NoError(t, json.Unmarshal(out, &have))
		for _, o := range have {
			if slices.Contains(ids, o.ID) {
				list = append(list, fmt.Sprintf("%s %d", kind, o.ID))
			}
		}
	}
	return list
}
