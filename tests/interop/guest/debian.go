package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debian fetches packages of the host's Debian without installing any.
type debian struct {
	dir string // for the downloads
}

// closure downloads packages with all their dependencies, as if nothing were installed, and returns the files.
func (d debian) closure(ctx context.Context, names []string) ([]string, error) {
	archives := filepath.Join(d.dir, "archives")
	status := filepath.Join(d.dir, "status")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return nil, err
	}
	// An empty database of installed packages: libc counts as missing, too.
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	args := append([]string{
		"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + archives, "-o", "Debug::NoLocking=1",
		"--no-install-recommends", "--download-only", "install",
	}, names...)
	if err := d.aptGet(ctx, args...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(archives, "*.deb"))
}

// one downloads a single package and returns its file.
func (d debian) one(ctx context.Context, name string) (string, error) {
	if err := d.aptGet(ctx, "download", name); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(d.dir, name+"_*.deb"))
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("package %s: %d files", name, len(files))
	}
	if err != nil {
		return "", err
	}
	return files[0], nil
}

// aptGet runs apt-get. The index may be missing or outdated, so after a failure it updates the index once and retries.
func (d debian) aptGet(ctx context.Context, args ...string) error {
	args = append([]string{"-qq", "-y", "-o", "APT::Sandbox::User=root"}, args...)
	_, err := d.run(ctx, "apt-get", args...)
	if err == nil {
		return nil
	}
	if _, update := d.run(ctx, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "update"); update != nil {
		return errors.Join(err, update)
	}
	_, err = d.run(ctx, "apt-get", args...)
	return err
}

// image returns the package of the newest kernel that a meta package names.
func (d debian) image(ctx context.Context, meta string) (string, error) {
	for attempt := range 2 {
		out, err := d.run(ctx, "apt-cache", "depends", meta)
		for line := range strings.Lines(string(out)) {
			if _, name, ok := strings.Cut(line, "Depends: linux-image-"); ok && err == nil {
				return "linux-image-" + strings.TrimSpace(name), nil
			}
		}
		if attempt == 0 {
			if _, err := d.run(ctx, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "update"); err != nil {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("package %s: none in the index", meta)
}

func (d debian) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out, nil
}

// entry is a file, directory or link of a package; the name is relative to the
// root.
type entry struct {
	*tar.Header

	name    string
	content []byte
}

// unpack calls f for everything in a package.
func unpack(ctx context.Context, file string, f func(entry) error) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unpack %s: %w", file, err)
	}
	err = eachEntry(tar.NewReader(out), f)
	// The rest of the archive is not needed, but must be read.
	_, _ = io.Copy(io.Discard, out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("unpack %s: %w", file, err)
	}
	return nil
}

func eachEntry(r *tar.Reader, f func(entry) error) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		e := entry{Header: h, name: filepath.Clean(strings.TrimPrefix(h.Name, "./"))}
		if h.Typeflag == tar.TypeReg {
			if e.content, err = io.ReadAll(r); err != nil {
				return err
			}
		}
		if err := f(e); err != nil {
			return err
		}
	}
}
