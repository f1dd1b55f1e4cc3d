package adopt

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPreremove: a package is removed after all that loads its library, or not at all.
func TestPreremove(t *testing.T) {
	script, err := os.ReadFile("../../packaging/scripts/preremove.sh")
	require.NoError(t, err)
	for list, want := range map[string]string{
		"none": "",
		"# /usr/lib/smcgw/$LIB/libsmcgw.so\n/b.so\n":         "",
		"/opt/lib/libsmcgw.so\n":                             "", // another's
		"/b.so\n/b.so:/usr/lib/smcgw/$LIB/libsmcgw.so # x\n": "/etc/ld.so.preload cannot be changed",
	} {
		h := tree(t, map[string]string{
			"usr/bin/smcgw": "#!/bin/sh\necho \"$@\" >>\"${0%/*}/called\"\nexit 1\n", // as where it cannot write
			"etc/systemd/system/-a.service.d/" + DropIn:        "",
			"etc/systemd/system/b\\x2dc@1.service.d/" + DropIn: "",
			"etc/systemd/system/other.service.d/a.conf":        "",
		})
		rooted := strings.NewReplacer("/usr/", h.Root+"/usr/", "/etc/", h.Root+"/etc/", "/run/", h.Root+"/run/")
		require.NoError(t, os.Chmod(filepath.Join(h.Root, "usr/bin/smcgw"), 0o700))
		if list != "none" {
			require.NoError(t, os.WriteFile(filepath.Join(h.Root, loaderFile), []byte(rooted.Replace(list)), 0o644))
		}
		text := rooted.Replace(string(script))
		said, err := exec.Command("sh", "-c", text, "preremove", "remove").CombinedOutput()
		called, errRead := os.ReadFile(filepath.Join(h.Root, "usr/bin/called"))
		require.NoError(t, errRead)
		if want != "" {
			require.Error(t, err)
			require.Contains(t, string(said), want)
			require.Equal(t, "preload disable --host\n", string(called))
			continue
		}
		require.NoError(t, err, "%s", said)
		require.Equal(t, "preload disable --host\npreload disable -- -a.service\npreload disable -- b\\x2dc@1.service\ncleanup\n", string(called))
	}
}
