package mirror_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// library is what libsmcgw does at an end whose directions are open: it writes own words, reads the mirror, rings the bell
// and sleeps. One goroutine writes, another reads.
type library struct {
	own, mirror []byte
	bell, sock  int
	size        uint64
	desk        *fakeDesk

	head, tail uint64
	arms       uint32
	rung       atomic.Uint32 // arm of the mirror that was rung for
	tailRung   uint64
	wants      uint32
	alone      bool // sleeps at no slot
}

// fakeDesk is the desk of a process, of which a library uses one slot.
type fakeDesk struct {
	page  []byte
	of    *mirror.Desk // the gateway's
	slept uint32
}

func newLibrary(t testing.TB, f shared.Portion, order uint32, sock int, desk *fakeDesk) *library {
	t.Helper()
	size := int(inprocess.EndSize(order))
	l := &library{sock: sock, size: 1 << order, desk: desk}
	var err error
	l.own, err = unix.Mmap(f.Own.Write, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	_, err = unix.Mmap(f.Mirror.Read, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EACCES)
	l.mirror, err = unix.Mmap(f.Mirror.Read, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	again, err := unix.Open(fmt.Sprint("/proc/self/fd/", f.Mirror.Read), unix.O_RDWR|unix.O_CLOEXEC, 0) // which the owner of the file can
	require.NoError(t, err)
	_, err = unix.Mmap(again, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	require.NoError(t, unix.Close(again))
	l.bell, err = unix.Dup(f.Bell)
	require.NoError(t, err)
	f.Close()
	return l
}

func (l *library) close() {
	_ = unix.Munmap(l.own)
	_ = unix.Munmap(l.mirror)
	_ = unix.Close(l.bell)
	l.hangUp()
}

// hangUp closes the socket.
func (l *library) hangUp() {
	if l.sock >= 0 {
		_ = unix.Close(l.sock)
		l.sock = -1
	}
}

func word32(m []byte, at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m[at])) }
func word64(m []byte, at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m[at])) }

func (l *library) ring(m []byte) []byte { return m[inprocess.RingAt:] }

// says changes a word of the own memory and rings for it.
func (l *library) says(at int, v uint64) {
	switch at {
	case inprocess.EndHead, inprocess.EndTail, inprocess.EndKsent, inprocess.EndTransitions + 8:
		word64(l.own, at).Store(v)
	default:
		word32(l.own, at).Store(uint32(v))
	}
	l.ringBell()
}

var once = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// ringBell rings once for each value of arm.
func (l *library) ringBell() {
	arm := word32(l.mirror, inprocess.EndArm).Load()
	if rung := l.rung.Load(); arm != 0 && arm != rung && l.rung.CompareAndSwap(rung, arm) {
		_, _ = unix.Write(l.bell, once)
	}
}

func (l *library) flags() uint32   { return word32(l.mirror, inprocess.EndFlags).Load() }
func (l *library) arrived() uint64 { return word64(l.mirror, inprocess.EndHead).Load() }
func (l *library) freed() uint64   { return word64(l.mirror, inprocess.EndTail).Load() }

// room waits for room in the ring; 0: the carrier has gone.
func (l *library) room() (uint64, error) {
	const futexWait = 0
	for {
		used := l.head - l.freed()
		if used > l.size {
			return 0, fmt.Errorf("tail %d of the mirror, head %d", l.freed(), l.head)
		}
		if used < l.size {
			return l.size - used, nil
		}
		room := word32(l.mirror, inprocess.EndRoom)
		was := room.Load()
		l.wants++
		word32(l.own, inprocess.EndWant).Store(l.wants)
		if l.freed()+l.size != l.head {
			continue
		}
		if l.flags()&inprocess.Gone != 0 {
			return 0, nil
		}
		limit := unix.NsecToTimespec(int64(patience))
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(room)), futexWait, uintptr(was), uintptr(unsafe.Pointer(&limit)), 0, 0)
		if errno == unix.ETIMEDOUT {
			return 0, fmt.Errorf("writer at %d sleeps on: tail %d", l.head, l.freed())
		}
	}
}

// write writes b, and returns how much of it before the carrier has gone.
func (l *library) write(b []byte) (n int, err error) {
	for n < len(b) && l.flags()&inprocess.Gone == 0 {
		room, err := l.room()
		if err != nil || room == 0 {
			return n, err
		}
		at := l.head & (l.size - 1)
		k := copy(l.ring(l.own)[at:min(l.size, at+room)], b[n:])
		n += k
		l.head += uint64(k)
		word64(l.own, inprocess.EndHead).Store(l.head)
		l.ringBell()
	}
	return n, nil
}

// span waits for bytes and returns those that are there; none: the carrier has gone, or the peer's process has ended.
func (l *library) span() ([]byte, error) {
	for {
		if n := l.arrived() - l.tail; n > l.size {
			return nil, fmt.Errorf("head %d of the mirror, tail %d", l.arrived(), l.tail)
		} else if n > 0 {
			at := l.tail & (l.size - 1)
			return l.ring(l.mirror)[at:min(l.size, at+n)], nil
		}
		if l.flags()&(inprocess.Gone|inprocess.Shut) != 0 && l.arrived() == l.tail {
			return nil, nil
		}
		if err := l.sleep(); err != nil {
			return nil, err
		}
	}
}

// sleep settles and waits for the doorbell, by itself or at a slot.
func (l *library) sleep() error {
	if err := unix.SetsockoptInt(l.sock, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 2); err != nil {
		return err
	}
	l.arms++
	atSlot := !l.alone && rand.IntN(2) == 0
	arm := word32(l.own, inprocess.EndArm)
	if atSlot {
		arm.Store(l.arms<<8 | 5)
		l.desk.slept++
		sleeps := word32(l.desk.page, inprocess.DeskSlot+5*inprocess.SlotSize)
		sleeps.Store(l.desk.slept)
		defer sleeps.Store(0)
	} else {
		arm.Store(l.arms<<8 | inprocess.ArmSelf)
	}
	defer arm.Store(0)
	if l.arrived() != l.tail || l.flags()&(inprocess.Gone|inprocess.Shut) != 0 {
		return nil
	}
	fds := []unix.PollFd{{Fd: int32(l.sock), Events: unix.POLLIN}}
	for until := time.Now().Add(patience); ; {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n > 0:
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("reader at %d sleeps on: head %d, slot %v", l.tail, l.arrived(), atSlot)
		}
	}
}

// sleepInSet settles ends of a process and waits for the doorbell of any of them, by level.
func sleepInSet(desk *fakeDesk, ends []*library) error {
	for _, l := range ends {
		if err := unix.SetsockoptInt(l.sock, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 2); err != nil {
			return err
		}
		if l.arms == 0 { // from then on it is at the slot
			l.arms++
			word32(l.own, inprocess.EndArm).Store(l.arms<<8 | 5)
		}
	}
	desk.slept++
	sleeps := word32(desk.page, inprocess.DeskSlot+5*inprocess.SlotSize)
	sleeps.Store(desk.slept)
	defer sleeps.Store(0)
	fds := make([]unix.PollFd, len(ends))
	for i, l := range ends {
		if l.arrived() != l.tail {
			return nil
		}
		fds[i] = unix.PollFd{Fd: int32(l.sock), Events: unix.POLLIN}
	}
	for {
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); err == unix.EINTR {
			continue
		} else if err != nil || n > 0 {
			return err
		}
		return fmt.Errorf("a set sleeps on, with %d ends", len(ends))
	}
}

// take has read n bytes.
func (l *library) take(n int) {
	l.tail += uint64(n)
	word64(l.own, inprocess.EndTail).Store(l.tail)
	if l.tail-l.tailRung >= l.size/8 || word32(l.mirror, inprocess.EndArm).Load()&0xff == inprocess.ArmRead {
		l.tailRung = l.tail
		l.ringBell()
	}
}
