package hw

import "unsafe"

// Addr implements verbs.MR: adapters know memory by its virtual address.
func (m *mr) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))) }
