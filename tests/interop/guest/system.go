package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// systemPackages are what a whole Debian has besides its essential packages: systemd as
// the first process, apt, and what tests look at it with.
var systemPackages = []string{"systemd-sysv", "udev", "dbus", "iproute2", "procps", "bpftool"}

// systemRelease is the Debian that the tests install packages in.
const systemRelease = "bookworm"

// systemOptions leave out what is only read by people.
var systemOptions = []string{
	"--variant=apt", "--mode=root", "--aptopt=APT::Sandbox::User \"root\"",
	"--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
	"--dpkgopt=path-include=/usr/share/doc/smcgw/*", "--dpkgopt=path-exclude=/usr/share/info/*",
}

// BuildSystem makes a Debian as it is installed, in the cache directory, unless it is
// there: a tar archive for [Config.System]. It needs mmdebstrap and root.
func BuildSystem(ctx context.Context) (file string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Append(nil, recipe, systemRelease, systemPackages, systemOptions))
	file = filepath.Join(cache, fmt.Sprintf("system-%x.tar", sum[:8]))
	unlock, err := lock(ctx, file+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	args := append(append([]string{}, systemOptions...),
		"--include="+strings.Join(systemPackages, ","), "--format=tar", systemRelease, file+".tmp")
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", errors.Join(fmt.Errorf("mmdebstrap: %w: %s", err, bytes.TrimSpace(said.Bytes())), os.RemoveAll(file+".tmp"))
	}
	return file, os.Rename(file+".tmp", file)
}
