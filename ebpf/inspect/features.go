package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
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
