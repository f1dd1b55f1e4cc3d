//go:build cgo && hw

package ibv

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// library is libibverbs.so.1, loaded once and never unloaded.
type library struct{}

var load = sync.OnceValue(func() error {
	if text := C.hw_load(); text != nil {
		return fmt.Errorf("%s: %w", C.GoString(text), ErrLibraryAbsent)
	}
	return nil
})

// Load loads libibverbs.
func Load() (Library, error) {
	if err := load(); err != nil {
		return nil, err
	}
	return library{}, nil
}

// Devices implements Library. Unlike the library, it includes adapters without a provider, for which Open returns the
// reason.
func (library) Devices() (names []string, err error) {
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list RDMA adapters: %w", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func devices() (names []string, list **C.struct_ibv_device, free func(), err error) {
	var n C.int
	list, err = C.hw_device_list(&n)
	if list == nil {
		if errors.Is(err, unix.ENOSYS) { // the kernel has no RDMA at all
			return nil, nil, func() {}, nil
		}
		return nil, nil, nil, fmt.Errorf("list RDMA adapters: %w", err)
	}
	for i := range n {
		names = append(names, C.GoString(C.hw_device_name(list, i)))
	}
	return names, list, func() { C.hw_free_device_list(list) }, nil
}

// Open implements Library.
func (library) Open(name string) (Context, error) {
	names, list, free, err := devices()
	if err != nil {
		return nil, err
	}
	defer free()
	i := slices.Index(names, name)
	if i < 0 {
		return nil, missing(name)
	}
	ctx, err := C.hw_open(list, C.int(i))
	if ctx == 0 {
		return nil, fmt.Errorf("open RDMA adapter: %w", err)
	}
	return &context{ctx: ctx}, nil
}

// missing returns why the library does not list an adapter.
func missing(name string) error {
	if _, err := os.Stat(ClassDir + "/" + name); err != nil {
		return fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	if _, err := os.Stat(ClassDir + "_verbs"); err != nil {
		return fmt.Errorf("%s: kernel module ib_uverbs is not loaded: %w", name, ErrNoDevice)
	}
	return fmt.Errorf("%s: %w", name, ErrProviderAbsent)
}
