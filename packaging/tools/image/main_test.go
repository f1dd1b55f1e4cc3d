package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// read takes an archive apart.
func read(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

func decode(t *testing.T, b []byte, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(b, into), "%s", b)
}

// TestLayout: every blob has the digest and the size by which it is named, from the
// index down to the files, and the same files make the same bytes.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	program, out := filepath.Join(dir, "smcgw"), filepath.Join(dir, "image.tar")
	require.NoError(t, os.WriteFile(program, []byte("program"), 0o700))
	require.NoError(t, build(program, "../../smcgw.yaml", "smcgw:1.2.3", "amd64", out))
	image, err := os.ReadFile(out)
	require.NoError(t, err)
	files := read(t, image)
	get := func(d descriptor) []byte {
		name, ok := strings.CutPrefix(d.Digest, "sha256:")
		require.True(t, ok)
		b := files["blobs/sha256/"+name]
		sum := sha256.Sum256(b)
		require.Equal(t, name, hex.EncodeToString(sum[:]))
		require.Len(t, b, d.Size)
		return b
	}
	var index struct{ Manifests []descriptor }
	decode(t, files["index.json"], &index)
	require.Len(t, index.Manifests, 1)
	require.Equal(t, "smcgw:1.2.3", index.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, get(index.Manifests[0]), &manifest)
	require.Len(t, manifest.Layers, 1)
	var config struct {
		Architecture string
		Rootfs       struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, get(manifest.Config), &config)
	require.Equal(t, "amd64", config.Architecture)
	require.Equal(t, []string{manifest.Layers[0].Digest}, config.Rootfs.DiffIDs)
	layer := read(t, get(manifest.Layers[0]))
	require.Equal(t, "program", string(layer["usr/bin/smcgw"]))
	require.Contains(t, string(layer["etc/smcgw/smcgw.yaml"]), "mode: observe")

	require.NoError(t, build(program, "../../smcgw.yaml", "smcgw:1.2.3", "amd64", out))
	again, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, image, again)
	require.Error(t, build(filepath.Join(dir, "none"), "../../smcgw.yaml", "x", "amd64", out))
}

// TestLoad: a container engine takes the image, and the program runs in it.
func TestLoad(t *testing.T) {
	program := os.Getenv("SMCGW_BINARY")
	if _, err := exec.LookPath("podman"); err != nil || program == "" || os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, podman, and a static program in SMCGW_BINARY")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "image.tar")
	require.NoError(t, build(program, "../../smcgw.yaml", "localhost/smcgw:test", "amd64", out))
	podman := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "podman", append([]string{
			"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
			"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		}, args...)...)
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "podman %v: %s", args, text)
		return string(text)
	}
	podman("load", "-i", out)
	require.Contains(t, podman("image", "inspect", "localhost/smcgw:test"), `"up"`)
	at := podman("image", "mount", "localhost/smcgw:test")
	_, mounted, ok := strings.Cut(strings.TrimSpace(at), " ")
	if !ok {
		mounted = strings.TrimSpace(at)
	}
	got, err := os.ReadFile(filepath.Join(strings.TrimSpace(mounted), "usr/bin/smcgw"))
	require.NoError(t, err)
	want, err := os.ReadFile(program)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	podman("image", "unmount", "localhost/smcgw:test")
}
