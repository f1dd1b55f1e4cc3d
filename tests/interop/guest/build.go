package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Image is a guest that can be booted.
type Image struct {
	Kernel string // file with the kernel as an ELF image
	Root   string // file with the root file system, a cpio archive without /init
}

// recipe changes when guests must be rebuilt although the lists of packages and modules are the same.
const recipe = "2"

// Build makes the guest with a kernel of the series in the cache directory, unless it exists. It needs apt-get,
// dpkg-deb, xz, zstd and gcc, and no privileges except write access to apt's index if that must be updated. If
// several processes build at once, one does and the others wait.
func Build(ctx context.Context, series Series) (Image, error) {
	meta, err := series.metaPackage()
	if err != nil {
		return Image{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Image{}, err
	}
	sum := sha256.Sum256(fmt.Append(nil, recipe, meta, packages, modules, hostModules, unwanted, applets, shimSource))
	dir := filepath.Join(cache, fmt.Sprintf("guest-%x", sum[:8]))
	img := Image{Kernel: filepath.Join(dir, "vmlinux"), Root: filepath.Join(dir, "root.cpio")}
	unlock, err := Lock(ctx, dir+".lock")
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return img, nil
	}
	if err := buildIn(ctx, dir, meta); err != nil {
		return Image{}, fmt.Errorf("build guest with linux %s: %w", series, err)
	}
	return img, nil
}

// CacheDir returns the directory in which guests are kept: smcgw in the user's cache directory.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		// Without a home directory, as in some containers.
		base = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	dir := filepath.Join(base, "smcgw")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cache directory: %w", err)
	}
	return dir, nil
}

// Lock waits for the lock of a file. The lock ends with the process at the latest.
func Lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file, context.Cause(ctx)), f.Close())
		}
	}
}

// buildIn builds beside the directory and renames the result at the end, so that it exists completely or not at all.
func buildIn(ctx context.Context, dir, meta string) error {
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	deb := debian{dir: filepath.Join(tmp, "debs")}
	if err := os.MkdirAll(deb.dir, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()

	name, err := deb.image(ctx, meta)
	if err != nil {
		return err
	}
	file, err := deb.one(ctx, name)
	if err != nil {
		return err
	}
	k, err := readKernel(ctx, file)
	if err != nil {
		return err
	}
	vmlinux, err := k.vmlinux(ctx)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "vmlinux"), vmlinux, 0o644); err != nil {
		return err
	}
	debs, err := deb.closure(ctx, packages)
	if err != nil {
		return err
	}
	shim, err := compileShim(ctx, deb)
	if err != nil {
		return err
	}
	if err := writeRoot(ctx, filepath.Join(tmp, "root.cpio"), k, debs, shim); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(deb.dir), os.Rename(tmp, dir))
}

// LoadList and HostLoadList are files in the guest that name the modules to load, one path a line.
const (
	LoadList     = "lib/modules/load"
	HostLoadList = "lib/modules/load-hosts"
)

// writeRoot writes the root file system without compression: decompressing under emulation costs more than loading
// the bytes.
func writeRoot(ctx context.Context, file string, k *kernel, debs []string, shim []byte) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	a := newArchive(f)
	err = errors.Join(addModules(ctx, a, k), addPackages(ctx, a, debs), addSystem(a),
		a.file(strings.TrimPrefix(DatagramShim, "/"), 0o755, shim))
	return errors.Join(err, a.close(), f.Close())
}

func addModules(ctx context.Context, a *archive, k *kernel) error {
	order, err := k.loadOrder(ctx, modules)
	if err != nil {
		return err
	}
	all, err := k.loadOrder(ctx, append(slices.Clone(modules), hostModules...))
	if err != nil {
		return err
	}
	for _, m := range all {
		if err := a.file(m.path, 0o644, m.content); err != nil {
			return err
		}
	}
	return errors.Join(a.file(LoadList, 0o644, paths(order)), a.file(HostLoadList, 0o644, paths(all[len(order):])))
}

// paths lists the files of modules, one a line.
func paths(order []module) []byte {
	var list bytes.Buffer
	for _, m := range order {
		fmt.Fprintf(&list, "/%s\n", m.path)
	}
	return list.Bytes()
}

func addPackages(ctx context.Context, a *archive, debs []string) error {
	for _, deb := range debs {
		contents := map[string]entry{} // for hard links within the package
		err := unpack(ctx, deb, func(e entry) error {
			if slices.ContainsFunc(unwanted, func(p string) bool { return strings.HasPrefix(e.name, p) }) {
				return nil
			}
			switch e.Typeflag {
			case tar.TypeReg:
				contents[e.name] = e
				return a.file(e.name, e.FileInfo().Mode(), e.content)
			case tar.TypeLink:
				to := contents[filepath.Clean(e.Linkname)]
				return a.file(e.name, e.FileInfo().Mode(), to.content)
			case tar.TypeSymlink:
				return a.symlink(e.name, e.Linkname)
			case tar.TypeDir:
				return a.dir(e.name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addSystem adds what installation scripts would have made.
func addSystem(a *archive) error {
	var errs []error
	for _, d := range []string{"dev", "proc", "sys", "run", "tmp", "root", "mnt"} {
		errs = append(errs, a.dir(d))
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
		"etc/group":  "root:x:0:\n",
		"etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n",
		// Milliseconds until rpoll looks again: it misses events of listeners,
		// and its default is 5000.
		"etc/rdma/rsocket/wake_up_interval": "200\n",
	} {
		errs = append(errs, a.file(name, 0o644, []byte(content)))
	}
	for _, name := range applets {
		errs = append(errs, a.symlink("usr/local/bin/"+name, "/bin/busybox"))
	}
	return errors.Join(append(errs, a.symlink("bin/sh", "dash"))...)
}
