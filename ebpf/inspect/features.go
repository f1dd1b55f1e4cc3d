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

// Feature is something that the programs and maps need of the kernel.
type Feature struct {
	// Name is the kernel's word for it: "program type SockOps".
	Name string
	// Err is nil where the kernel has it, wraps [ErrKernel] where it has not, and is
	// something else where the question failed, as without CAP_BPF.
	Err error
}

// Features asks the running kernel for everything that the programs are made of, and
// changes nothing. What is asked for comes from the programs themselves (ebpf.Spec).
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

// optionalHelper is called only where the kernel has it (has_xfrm).
const optionalHelper = asm.FnSkbGetXfrmState

// neededHelpers lists the program types, each with the helpers that its programs call.
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

// neededMaps lists the map types.
func neededMaps(spec *bpf.CollectionSpec) (list []bpf.MapType) {
	for _, m := range spec.Maps {
		list = append(list, m.Type)
	}
	slices.SortFunc(list, func(a, b bpf.MapType) int { return cmp.Compare(a, b) })
	return slices.Compact(list)
}
