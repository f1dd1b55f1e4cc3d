package ebpf

import (
	"sync/atomic"
	"unsafe"
)

// word returns a number of struct traces, which the programs change concurrently.
func (t *traces) word(at int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&t.mem[t.base+at]))
}
