package ebpf

import (
	"sync/atomic"
	"unsafe"
)

// word is a number of struct traces that programs change, too.
func (t *traces) word(at int64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&t.mem[t.base+at]))
}
