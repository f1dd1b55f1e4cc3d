package mirror

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

// words are the words at the start of an end's memory and of a mirror. Each file has one writer.
type words struct {
	_     [inprocess.EndHead]byte
	head  atomic.Uint64
	base  uint64 // always 0
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
	_     [inprocess.EndGot - inprocess.EndFlags - 4]byte
	got   atomic.Uint64
	_     [inprocess.EndTransitions - inprocess.EndGot - 8]byte
	first struct{ r, k atomic.Uint64 } // the transition that OPEN makes
	_     [inprocess.EndNonces - inprocess.EndTransitions - inprocess.TransitionSize]byte
	nonce [2][inprocess.NonceSize]byte
}

// wordsOf returns the words of mapped memory.
func wordsOf(m []byte) *words {
	return (*words)(unsafe.Pointer(unsafe.SliceData(m[:inprocess.RingAt:inprocess.RingAt])))
}

// sleepsOf returns the sleeps word of a slot, which must be below inprocess.Slots.
func sleepsOf(desk []byte, slot uint32) *atomic.Uint32 {
	at := inprocess.DeskSlot + int(slot)*inprocess.SlotSize
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(desk[at:][:4:4])))
}

// wake wakes threads, of any process, that wait for the word to change. More than mostWoken of them would keep the shard;
// the others look again by themselves, after 50 ms.
func wake(word *atomic.Uint32) {
	const futexWake, mostWoken = 1, 64
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, mostWoken)
}

// setLowAt sets SO_RCVLOWAT. It does not use RawSyscall: the socket may be locked for a while, and the thread must give
// up its P meanwhile.
func setLowAt(fd int, n int32) {
	_, _, _ = unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, uintptr(unsafe.Pointer(&n)), 4, 0)
}
