package mirror

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// words are those that an end's memory and a mirror begin with. Each file has one writer.
type words struct {
	_     [inprocess.EndHead]byte
	head  atomic.Uint64
	base  uint64 // 0
	ksent atomic.Uint64
	order uint32
	nx    atomic.Uint32
	want  atomic.Uint32
	_     [inprocess.EndTail - inprocess.EndWant - 4]byte
	tail  atomic.Uint64
	_     uint32
	arm   atomic.Uint32
	room  atomic.Uint32
	flags atomic.Uint32
	_     [inprocess.EndTransitions - inprocess.EndFlags - 4]byte
	first struct{ r, k atomic.Uint64 } // the transition that OPEN is
	_     [inprocess.EndNonces - inprocess.EndTransitions - inprocess.TransitionSize]byte
	nonce [2][inprocess.NonceSize]byte
}

// wordsOf are the words of memory that is mapped.
func wordsOf(m []byte) *words {
	return (*words)(unsafe.Pointer(unsafe.SliceData(m[:inprocess.RingAt:inprocess.RingAt])))
}

// sleepsOf is the word of a slot of a desk, which is one.
func sleepsOf(desk []byte, slot uint32) *atomic.Uint32 {
	at := inprocess.DeskSlot + int(slot)*inprocess.SlotSize
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(desk[at:][:4:4])))
}

// wake wakes all that wait for a word to change, in whichever process.
func wake(word *atomic.Uint32) {
	const futexWake = 1
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32)
}

// setLowAt sets SO_RCVLOWAT. The socket may be locked for a while: the thread does not keep its P.
func setLowAt(fd int, n int32) {
	_, _, _ = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, uintptr(unsafe.Pointer(&n)), 4, 0)
}
