package adopt

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// library builds one that does nothing but what the text says.
func library(t *testing.T, compiler, text, file string) {
	testnet.Require(t, compiler)
	source := filepath.Join(t.TempDir(), "x.c")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", file, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// hostWithLibrary has one at a place that only its owner can write, which may not be so of
// the directory that all tests share.
func hostWithLibrary(t *testing.T, files map[string]string) *Installation {
	h := tree(t, files)
	require.NoError(t, os.Chmod(h.Root, 0o755))
	library(t, "gcc", "int smcgw;", filepath.Join(h.Root, h.Library, Name))
	require.NoError(t, os.MkdirAll(filepath.Join(h.Root, "etc"), 0o755))
	return h
}

func list(t *testing.T, h *Installation) string {
	b, err := os.ReadFile(filepath.Join(h.Root, loaderFile))
	if errors.Is(err, os.ErrNotExist) {
		return "none"
	}
	require.NoError(t, err)
	return string(b)
}

// TestEnableHost: our line and nothing else comes and goes.
func TestEnableHost(t *testing.T) {
	const own = "/usr/lib/smcgw/libsmcgw.so"
	for _, c := range []struct{ before, enabled, disabled string }{
		{"none", own + "\n", "none"},
		{"", own + "\n", "none"},
		{"/lib/other.so\n", "/lib/other.so\n" + own + "\n", "/lib/other.so\n"},
		{"/lib/other.so", "/lib/other.so\n" + own + "\n", "/lib/other.so\n"},
		{"# mine\n", "# mine\n" + own + "\n", "# mine\n"},
		{"/a.so " + own + ":/b.so # two\n", "/a.so " + own + ":/b.so # two\n", "/a.so /b.so # two\n"},
		{own + " # ours\n/b.so\n", own + " # ours\n/b.so\n", "# ours\n/b.so\n"},
		{"/b.so\n/usr/local/lib/smcgw/libsmcgw.so\n", "/b.so\n" + own + "\n", "/b.so\n"},
		{"# " + own + "\n", "# " + own + "\n" + own + "\n", "# " + own + "\n"},
	} {
		h := hostWithLibrary(t, nil)
		if c.before != "none" {
			require.NoError(t, os.WriteFile(filepath.Join(h.Root, loaderFile), []byte(c.before), 0o644))
		}
		for i := range 2 {
			changed, err := h.EnableHost(t.Context(), Try)
			require.NoError(t, err)
			require.Equal(t, i == 0 && c.before != c.enabled, changed, c.before)
			require.Equal(t, c.enabled, list(t, h))
			is, err := h.HostEnabled()
			require.NoError(t, err)
			require.True(t, is)
		}
		for i := range 2 {
			changed, err := h.DisableHost()
			require.NoError(t, err)
			require.Equal(t, i == 0, changed)
			require.Equal(t, c.disabled, list(t, h))
		}
		left, err := os.ReadDir(filepath.Join(h.Root, "etc"))
		require.NoError(t, err)
		require.LessOrEqual(t, len(left), 1) // no temporary file
	}
}

// TestEnableHostByLinks: the directory of the library may be a link to one that is as safe.
func TestEnableHostByLinks(t *testing.T) {
	h := hostWithLibrary(t, nil)
	dir := filepath.Join(h.Root, h.Library)
	require.NoError(t, os.Rename(dir, dir+"-1"))
	require.NoError(t, os.Symlink(filepath.Base(dir)+"-1", dir))
	changed, err := h.EnableHost(t.Context(), Try)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "/usr/lib/smcgw/libsmcgw.so\n", list(t, h))
}

// TestEnableHostBesideOthers: what others write while the library is tried stays.
func TestEnableHostBesideOthers(t *testing.T) {
	h := hostWithLibrary(t, nil)
	changed, err := h.EnableHost(t.Context(), func(context.Context, string) error {
		return os.WriteFile(filepath.Join(h.Root, loaderFile), []byte("/lib/other.so\n"), 0o644)
	})
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "/lib/other.so\n/usr/lib/smcgw/libsmcgw.so\n", list(t, h))
}

// TestDisableLostHost: the line of an installation that is gone is found, or every program would complain for ever.
func TestDisableLostHost(t *testing.T) {
	h := tree(t, map[string]string{loaderFile: "/opt/smcgw/libsmcgw.so\n/lib/other.so\n"})
	is, err := h.HostEnabled()
	require.NoError(t, err)
	require.True(t, is)
	changed, err := h.DisableHost()
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "/lib/other.so\n", list(t, h))
}

// TestRefusedHost: what cannot be loaded by every program is not written down.
func TestRefusedHost(t *testing.T) {
	file := func(h *Installation) string { return filepath.Join(h.Root, h.Library, Name) }
	has := func(name string) func(*Installation) {
		return func(h *Installation) {
			require.NoError(t, os.MkdirAll(filepath.Join(h.Root, filepath.Dir(name)), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(h.Root, name), nil, 0o755))
		}
	}
	for name, c := range map[string]struct {
		spoil func(*Installation)
		text  string
	}{
		"none":            {func(h *Installation) { require.NoError(t, os.Remove(file(h))) }, "no such file"},
		"no library":      {func(h *Installation) { require.NoError(t, os.WriteFile(file(h), []byte("x"), 0o644)) }, "no program"},
		"writable":        {func(h *Installation) { require.NoError(t, os.Chmod(file(h), 0o666)) }, "others than its owner may write"},
		"writable above":  {func(h *Installation) { require.NoError(t, os.Chmod(filepath.Join(h.Root, "usr"), 0o777)) }, "others than its owner may write /usr"},
		"unreadable":      {func(h *Installation) { require.NoError(t, os.Chmod(file(h), 0o700)) }, "not everyone may read"},
		"unknown symbols": {func(h *Installation) { library(t, "gcc", "int none(void); int x(void) { return none(); }", file(h)) }, "undefined symbol"},
		"it ends programs": {func(h *Installation) {
			library(t, "gcc", "#include <stdlib.h>\n__attribute__((constructor)) static void x(void) { _Exit(3); }", file(h))
		}, "exit status 3"},
		"it prints": {func(h *Installation) {
			library(t, "gcc", "#include <unistd.h>\n__attribute__((constructor)) static void x(void) { if (write(2, \"hello\", 5)) {} }", file(h))
		}, "hello"},
		"of musl": {func(h *Installation) {
			library(t, "musl-gcc", "#include <stdio.h>\nint x(void) { return puts(\"\"); }", file(h))
		}, ""},
		"others' directory": {func(h *Installation) {
			other := filepath.Join(h.Root, "home")
			require.NoError(t, os.MkdirAll(other, 0o777))
			require.NoError(t, os.Chmod(other, 0o777)) // whatever the umask
			require.NoError(t, os.Rename(file(h), filepath.Join(other, Name)))
			require.NoError(t, os.Symlink(filepath.Join(other, Name), file(h)))
		}, "others than its owner may write /home"},
		"outside": {func(h *Installation) {
			other := filepath.Join(t.TempDir(), Name)
			require.NoError(t, os.Rename(file(h), other))
			require.NoError(t, os.Symlink(other, file(h)))
		}, "outside of"},
		"unreachable": {func(h *Installation) { require.NoError(t, os.Chmod(filepath.Join(h.Root, "usr"), 0o700)) }, "not everyone may search /usr"},
		"32 bits":     {has("lib/ld-linux.so.2"), "programs (/lib/ld-linux.so.2)"},
		"armhf":       {has("lib/ld-linux-armhf.so.3"), "programs (/lib/ld-linux-armhf.so.3)"},
		"snaps":       {has("var/lib/snapd/snaps/core22_1.snap"), "core22_1.snap"},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostWithLibrary(t, map[string]string{"etc/ld.so.preload": "/lib/other.so\n"})
			c.spoil(h)
			_, err := h.EnableHost(t.Context(), nil)
			require.ErrorContains(t, err, c.text)
			require.True(t, errors.Is(err, ErrLibrary) || errors.Is(err, ErrHost), "%v", err)
			require.Equal(t, "/lib/other.so\n", list(t, h))
		})
	}
	h := hostWithLibrary(t, nil)
	_, err := h.EnableHost(t.Context(), func(context.Context, string) error { return ErrLibrary })
	require.ErrorIs(t, err, ErrLibrary)
	require.Equal(t, "none", list(t, h))
}

// TestAnywhere: one LD_PRELOAD has programs of glibc load the library for glibc, those of
// musl that for musl, and neither says a word.
func TestAnywhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), Installed)
	says := func(what string) string {
		return "#include <unistd.h>\n__attribute__((constructor)) static void x(void) { if (write(1, \"" + what + "\", 5)) {} }"
	}
	install(t, dir)
	library(t, "gcc", says("glibc"), filepath.Join(dir, Name))
	library(t, "musl-gcc", says("musl "), filepath.Join(dir, "libsmcgw-musl.so"))
	for compiler, want := range map[string]string{"gcc": "glibc", "musl-gcc": "musl "} {
		source := filepath.Join(t.TempDir(), "x.c")
		require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }"), 0o600))
		program := strings.TrimSuffix(source, ".c")
		out, err := exec.Command(compiler, "-o", program, source).CombinedOutput()
		require.NoError(t, err, "%s", out)
		c := exec.Command(program)
		c.Env = []string{"LD_PRELOAD=" + filepath.Join(dir, Anywhere)}
		out, err = c.CombinedOutput()
		require.NoError(t, err)
		require.Equal(t, want, string(out), compiler)
	}
}

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
