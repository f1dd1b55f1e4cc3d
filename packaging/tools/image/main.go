// Command image writes a container image with the static program, as an archive of an
// OCI image layout (image-spec v1), which `podman load`, `docker load`, `skopeo copy
// oci-archive:` and `ctr images import` take. It needs no registry, no daemon and no
// privileges, and the same files make the same bytes.
//
//	image -program bin/smcgw -config packaging/smcgw.yaml -tag smcgw:1.2.3 -out smcgw.tar
//
// The image has nothing but the program, a configuration in observe mode, and the user
// database. It has no libc: adapters need an image with rdma-core.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"
)

func main() {
	program := flag.String("program", "bin/smcgw", "static program")
	config := flag.String("config", "packaging/smcgw.yaml", "configuration to begin with")
	tag := flag.String("tag", "smcgw:latest", "name of the image")
	out := flag.String("out", "smcgw.tar", "archive to write")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the program")
	flag.Parse()
	if err := build(*program, *config, *tag, *arch, *out); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func build(program, config, tag, arch, out string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	settings, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	at, err := epoch()
	if err != nil {
		return err
	}
	layer, err := archive(at, contents(binary, settings))
	if err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	files, err := layout(layer, tag, arch, at)
	if err != nil {
		return err
	}
	image, err := archive(at, files)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return os.WriteFile(out, image, 0o644)
}

// epoch is the time of everything in the image.
func epoch() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// file is one of an archive; without content, and a name that ends with a slash, it is
// a directory.
type file struct {
	name    string
	mode    int64
	content []byte
}

// contents are the files of the image.
func contents(program, config []byte) []file {
	return []file{
		{"usr/", 0o755, nil},
		{"usr/bin/", 0o755, nil},
		{"usr/bin/smcgw", 0o755, program},
		{"etc/", 0o755, nil},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\n")},
		{"etc/smcgw/", 0o755, nil},
		{"etc/smcgw/smcgw.yaml", 0o644, config},
		{"run/", 0o755, nil},
		{"run/smcgw/", 0o755, nil},
		{"var/", 0o755, nil},
		{"var/lib/", 0o755, nil},
		{"var/lib/smcgw/", 0o755, nil},
		{"tmp/", 0o1777, nil},
	}
}

func archive(at time.Time, files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if _, err := io.Copy(w, bytes.NewReader(f.content)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Media types of the image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// blob adds a file to the layout that is named by its digest.
func blob(files *[]file, kind string, content []byte) descriptor {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	*files = append(*files, file{"blobs/sha256/" + digest, 0o644, content})
	return descriptor{MediaType: kind, Digest: "sha256:" + digest, Size: len(content)}
}

// layout is the image of one layer.
func layout(layer []byte, tag, arch string, at time.Time) ([]file, error) {
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"blobs/", 0o755, nil}, {"blobs/sha256/", 0o755, nil}}
	bytes := blob(&files, typeLayer, layer)
	config, err := json.Marshal(map[string]any{
		"created": at.Format(time.RFC3339), "architecture": arch, "os": "linux",
		"config": map[string]any{
			"Env": []string{"PATH=/usr/bin"}, "Entrypoint": []string{"smcgw"},
			"Cmd": []string{"up", "-c", "/etc/smcgw/smcgw.yaml"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{bytes.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": blob(&files, typeConfig, config), "layers": []descriptor{bytes},
	})
	if err != nil {
		return nil, err
	}
	m := blob(&files, typeManifest, manifest)
	m.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{m}})
	if err != nil {
		return nil, err
	}
	return append(files, file{"index.json", 0o644, index}), nil
}
