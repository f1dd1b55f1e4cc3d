package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// kernel is what the guest needs from a kernel's package.
type kernel struct {
	image   []byte            // the compressed image, as boot loaders take it
	builtin map[string]bool   // names of modules that are built into the image
	modules map[string]module // by name
}

type module struct {
	path    string // in the guest, uncompressed
	content []byte // as in the package, perhaps compressed
	packed  bool
}

// readKernel reads a kernel's package.
func readKernel(ctx context.Context, file string) (*kernel, error) {
	k := &kernel{builtin: map[string]bool{}, modules: map[string]module{}}
	err := unpack(ctx, file, func(e entry) error {
		switch base := path.Base(e.name); {
		case strings.HasPrefix(e.name, "boot/vmlinuz-"):
			k.image = e.content
		case base == "modules.builtin":
			for line := range strings.Lines(string(e.content)) {
				k.builtin[moduleName(strings.TrimSpace(line))] = true
			}
		case strings.HasSuffix(base, ".ko"):
			k.modules[moduleName(base)] = module{path: e.name, content: e.content}
		case strings.HasSuffix(base, ".ko.xz"):
			name := strings.TrimSuffix(e.name, ".xz")
			k.modules[moduleName(name)] = module{path: name, content: e.content, packed: true}
		}
		return nil
	})
	if err == nil && (k.image == nil || len(k.modules) == 0) {
		err = fmt.Errorf("kernel package %s: no kernel", file)
	}
	return k, err
}

// moduleName returns the name of a module from its file: dashes become underscores.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")
}

// vmlinux extracts the ELF image from the compressed one. The emulator enters it directly (PVH), which saves the
// seconds that decompressing under emulation costs. The setup header says where it is
// (Documentation/arch/x86/boot.rst).
func (k *kernel) vmlinux(ctx context.Context) ([]byte, error) {
	const setupSectors, payloadOffset, payloadLength, headerEnd = 0x1f1, 0x248, 0x24c, 0x250
	if len(k.image) < headerEnd {
		return nil, errors.New("kernel image without setup header")
	}
	at := (int(k.image[setupSectors])+1)*512 + int(binary.LittleEndian.Uint32(k.image[payloadOffset:]))
	n := int(binary.LittleEndian.Uint32(k.image[payloadLength:]))
	if n < 4 || at+n > len(k.image) {
		return nil, fmt.Errorf("kernel image of %d bytes with payload %d+%d", len(k.image), at, n)
	}
	// The last four bytes are the uncompressed size, for the decompressor.
	payload := k.image[at : at+n-4]
	program := "xz"
	if bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		program = "zstd"
	}
	out, err := decompress(ctx, program, payload)
	if err != nil {
		return nil, fmt.Errorf("kernel image: %w", err)
	}
	if !bytes.HasPrefix(out, []byte(elf.ELFMAG)) {
		return nil, errors.New("kernel image without an ELF file in it")
	}
	return out, nil
}

func decompress(ctx context.Context, program string, b []byte) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, "-dcq")
	cmd.Stdin = bytes.NewReader(b)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", program, err, errs.Bytes())
	}
	return out, nil
}

// loadOrder returns the modules and all their dependencies, uncompressed, each after its dependencies.
func (k *kernel) loadOrder(ctx context.Context, names []string) ([]module, error) {
	var order []module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] || k.builtin[name] {
			return nil
		}
		seen[name] = true
		m, err := k.unpackModule(ctx, name)
		if err != nil {
			return err
		}
		needs, err := dependencies(m.content)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		order = append(order, m)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

func (k *kernel) unpackModule(ctx context.Context, name string) (m module, err error) {
	m, ok := k.modules[name]
	if !ok {
		return m, fmt.Errorf("module %s: none in the kernel's package", name)
	}
	if m.packed {
		m.packed = false
		m.content, err = decompress(ctx, "xz", m.content)
	}
	return m, err
}

// dependencies returns the modules that must be loaded before a module, from its .modinfo section of NUL-terminated
// name=value pairs.
func dependencies(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for pair := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(pair, []byte("depends=")); ok && len(list) > 0 {
			needs = append(needs, strings.Split(strings.ReplaceAll(string(list), "-", "_"), ",")...)
		}
	}
	return slices.Compact(needs), nil
}
