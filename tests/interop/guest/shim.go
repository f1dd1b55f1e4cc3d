package guest

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// DatagramShim is the library in the guest with which programs that use datagram rsockets must be started
// (LD_PRELOAD); shim/datagram.c says why.
const DatagramShim = "/usr/lib/smcgw-datagram.so"

//go:embed shim/datagram.c
var shimSource []byte

// compileShim compiles the library for the guest, with the headers of the package that it is for, which are not
// installed.
func compileShim(ctx context.Context, deb debian) ([]byte, error) {
	file, err := deb.one(ctx, "libibverbs-dev")
	if err != nil {
		return nil, err
	}
	const include = "usr/include/"
	err = unpack(ctx, file, func(e entry) error {
		if !strings.HasPrefix(e.name, include) || e.content == nil {
			return nil
		}
		to := filepath.Join(deb.dir, e.name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, e.content, 0o644)
	})
	if err != nil {
		return nil, err
	}
	source, library := filepath.Join(deb.dir, "datagram.c"), filepath.Join(deb.dir, "datagram.so")
	if err := os.WriteFile(source, shimSource, 0o644); err != nil {
		return nil, err
	}
	gcc := exec.CommandContext(ctx, "gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror",
		"-isystem", filepath.Join(deb.dir, include), "-o", library, source, "-ldl")
	if out, err := gcc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile shim: %w: %s", err, out)
	}
	return os.ReadFile(library)
}
