package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrKernel means that the kernel is older than 6.6 or lacks a feature.
var ErrKernel = errors.New("kernel lacks a needed feature")

// KernelError names what the running kernel lacks.
type KernelError struct {
	Missing string // a feature, and where it comes from
	Release string // of the running kernel
}

// Error implements error.
func (e *KernelError) Error() string {
	return fmt.Sprintf("kernel %s lacks %s", e.Release, e.Missing)
}

// Unwrap returns ErrKernel.
func (*KernelError) Unwrap() error { return ErrKernel }

// btfPath is where a kernel with CONFIG_DEBUG_INFO_BTF exposes its types, which the verifier needs for the fields of
// tcp_sock that the programs read.
const btfPath = "/sys/kernel/btf/vmlinux"

// CheckKernel returns an error unless the kernel has tcx links, which came with Linux 6.6, and BTF.
func CheckKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	return checkFeatures(unix.ByteSliceToString(u.Release[:]), btfPath)
}

func checkFeatures(release, btf string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("kernel release %q: %w", release, err)
	}
	if major < 6 || major == 6 && minor < 6 {
		return &KernelError{Missing: "tcx links (Linux 6.6)", Release: release}
	}
	if _, err := os.Stat(btf); errors.Is(err, fs.ErrNotExist) {
		return &KernelError{Missing: "BTF: no " + btf + " (CONFIG_DEBUG_INFO_BTF)", Release: release}
	}
	return nil
}
