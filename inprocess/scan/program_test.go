package scan

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

const emptyMain = "int main(void) { return 0; }\n"

// compile makes a program.
func compile(t *testing.T, compiler string, flags ...string) string {
	testnet.Require(t, compiler)
	dir := t.TempDir()
	src := filepath.Join(dir, "p.c")
	require.NoError(t, os.WriteFile(src, []byte(emptyMain), 0o600))
	out := filepath.Join(dir, "p")
	text, err := exec.Command(compiler, append(flags, "-o", out, src)...).CombinedOutput()
	require.NoError(t, err, string(text))
	return out
}

func TestKindsOfPrograms(t *testing.T) {
	dynamic := compile(t, "gcc")
	suid := compile(t, "gcc")
	require.NoError(t, os.Chmod(suid, 0o755|os.ModeSetuid))
	script := func(line string) string {
		at := filepath.Join(t.TempDir(), "s")
		require.NoError(t, os.WriteFile(at, []byte(line+"\necho\n"), 0o700))
		return at
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for name, x := range map[string]struct {
		path string
		want Program
	}{
		"dynamic":        {dynamic, Program{dynamic, Glibc, ""}},
		"musl":           {compile(t, "musl-gcc"), Program{Libc: Musl}},
		"static":         {compile(t, "gcc", "-static"), Program{Obstacle: Obstacle(Static)}},
		"static pie":     {compile(t, "gcc", "-static-pie"), Program{Obstacle: Obstacle(Static)}},
		"set-user-ID":    {suid, Program{suid, Glibc, Obstacle(Setuid)}},
		"Go":             {self, Program{Path: self, Obstacle: Obstacle(GoRuntime)}},
		"script":         {script("#!" + dynamic + " -x"), Program{dynamic, Glibc, ""}},
		"script of one":  {script("#!" + script("#! "+dynamic)), Program{dynamic, Glibc, ""}},
		"script by env":  {script("#!/usr/bin/env -S A=b " + dynamic), Program{dynamic, Glibc, ""}},
		"script of none": {script("#!/usr/bin/env"), Program{Path: "/usr/bin/env", Libc: Glibc}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Inspect(x.path)
			require.NoError(t, err)
			if x.want.Path == "" {
				x.want.Path = x.path
			}
			if x.want.Obstacle == Obstacle(GoRuntime) {
				got.Libc = "" // with the race detector there is one
			}
			require.Equal(t, x.want, got)
			if got.Obstacle != "" {
				require.NotEmpty(t, got.Obstacle.Meaning())
			}
		})
	}
}

func TestWrongPrograms(t *testing.T) {
	at := filepath.Join(t.TempDir(), "p")
	var wrong *FormatError
	for name, text := range map[string]string{"empty": "", "text": "echo\n", "itself": "#!" + at, "elf": "\x7fELF", "no name": "#!\n"} {
		require.NoError(t, os.WriteFile(at, []byte(text), 0o700))
		_, err := Inspect(at)
		require.ErrorAs(t, err, &wrong, name)
	}
	_, err := Inspect("no-such-program-here")
	require.ErrorIs(t, err, exec.ErrNotFound)
}

// TestTruncatedPrograms: a program that is cut short is an error or another kind, never a panic.
func TestTruncatedPrograms(t *testing.T) {
	whole, err := os.ReadFile(compile(t, "gcc"))
	require.NoError(t, err)
	at := filepath.Join(t.TempDir(), "p")
	for n := 0; n < len(whole); n += 1 + n/8 {
		require.NoError(t, os.WriteFile(at, whole[:n], 0o700))
		_, _ = Inspect(at)
	}
}

// FuzzInspect: no file makes Inspect fail other than by an error.
func FuzzInspect(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, text []byte) {
		at := filepath.Join(t.TempDir(), "p")
		require.NoError(t, os.WriteFile(at, text, 0o700))
		p, err := Inspect(at)
		if err == nil && p.Obstacle == "" && p.Libc == "" {
			t.Fatalf("%+v", p)
		}
	})
}
