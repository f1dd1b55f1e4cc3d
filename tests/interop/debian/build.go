package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/tests/interop/guest"
)

// packages are what the Debian has besides essential packages: systemd as the first process, apt, rpm, and what tests
// inspect it with.
var packages = []string{"systemd-sysv", "dbus", "iproute2", "procps", "bpftool", "rpm"}

// release is the Debian release.
const release = "bookworm"

// options leave out files that only people read.
var options = []string{
	"--variant=apt", "--mode=root", "--aptopt=APT::Sandbox::User \"root\"",
	"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
	"--dpkgopt=path-include=/usr/share/doc/smcgw/*", "--dpkgopt=path-exclude=/usr/share/info/*",
}

// Build makes a tar archive of the installed Debian in the cache directory, unless it exists. It needs mmdebstrap and
// root.
func Build(ctx context.Context) (file string, err error) {
	cache, err := guest.CacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, release, packages, options))
	file = filepath.Join(cache, fmt.Sprintf("debian-%x.tar", sum[:8]))
	unlock, err := guest.Lock(ctx, file+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	args := append(slices.Clone(options), "--include="+strings.Join(packages, ","), "--format=tar", release, file+".tmp")
	if out, err := exec.CommandContext(ctx, "mmdebstrap", args...).CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("mmdebstrap: %w: %s", err, bytes.TrimSpace(out)), os.RemoveAll(file+".tmp"))
	}
	return file, os.Rename(file+".tmp", file)
}
