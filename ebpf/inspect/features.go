package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Feature is a kernel feature that the programs and maps need.
type Feature struct {
	// Name is the kernel's name for it, such as "program type SockOps".
	Name string
	// Err is nil if the kernel has the feature and wraps [ErrKernel] if it does not. Any other error means that the
	// test failed, for instance without CAP_BPF.
	Err error
}

// Features tests the running kernel for everything that the programs of spec (see ebpf.Spec) are made of. It changes
// nothing.
func Features(spec *bpf.CollectionSpec) []Feature {
	list := []Feature{{Name: "tcx links and BTF", Err: CheckKernel()}}
	ask := func(name string, err error) {
		if errors.Is(err, bpf.ErrNotSupported) {
			err = fmt.Errorf("%w: %w", ErrKernel, err)
		}
		list = append(list, Feature{Name: name, Err: err})
	}
	ask("instructions of version 3", features.HaveV3ISA())
	helpers := neededHelpers(spec)
	for _, t := range slices.Sorted(maps.Keys(helpers)) {
		ask("program type "+t.String(), features.HaveProgramType(t))
		for _, h := range slices.Sorted(maps.Keys(helpers[t])) {
			ask(fmt.Sprintf("helper %s in %s", strings.TrimPrefix(h.String(), "Fn"), t), features.HaveProgramHelper(t, h))
		}
	}
	for _, t := range neededMaps(spec) {
		ask("map type "+t.String(), features.HaveMapType(t))
	}
	return list
}

// optionalHelper is called only if the kernel has it (has_xfrm).
const optionalHelper = asm.FnSkbGetXfrmState

// neededHelpers returns the program types, each with the helpers that its programs call.
func neededHelpers(spec *bpf.CollectionSpec) map[bpf.ProgramType]map[asm.BuiltinFunc]bool {
	all := map[bpf.ProgramType]map[asm.BuiltinFunc]bool{}
	for _, p := range spec.Programs {
		if all[p.Type] == nil {
			all[p.Type] = map[asm.BuiltinFunc]bool{}
		}
		for i := range p.Instructions {
			if ins := &p.Instructions[i]; ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) != optionalHelper {
				all[p.Type][asm.BuiltinFunc(ins.Constant)] = true
			}
		}
	}
	return all
}

// neededMaps returns the map types.
func neededMaps(spec *bpf.CollectionSpec) (list []bpf.MapType) {
	for _, m := range spec.Maps {
		list = append(list, m.Type)
	}
	slices.SortFunc(list, func(a, b bpf.MapType) int { return cmp.Compare(a, b) })
	return slices.Compact(list)
}

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
