package e2e

import (
	encoding "encoding/binary"
	"math"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/rogue"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// process has a process that has met the gateway on shm, with the right key, overwrite the memory they share while
// connections are carried there: words in use, in both files. The gateway must neither crash nor wait. The peer is
// sent away, or only its connections go wrong; those of other peers do not.
func (s *site) process() {
	t, rng := s.t, matrix.Rand(s.t)
	rounds := 5
	if matrix.Whole() {
		rounds = 30
	}
	ends := map[string]int{}
	for range rounds {
		before := held(eventfds(t))
		a := s.begin(negotiate.CarrierSHM, echoPort, nil)
		b := s.begin(negotiate.CarrierSHM, firstPort, nil)
		bells := fresh(t, before)
		letGo(before)
		for _, x := range []*attack{a, b} {
			require.NoError(t, x.c.Say(rsocket.MakeImm(rsocket.OpData, 8), x.c.PeerConn.DataBuf, 8))
		}
		mem, err := rogue.SharedMemory()
		require.NoError(t, err)
		require.NotZero(t, mem.Parts())
		// The test's own device would notice what was spoiled and hang up, so it has to wait.
		require.NoError(t, a.c.Do(func(verbs.QP) error {
			for range 40 {
				s.n.faults(int64(mem.Spoil(rng, 1+rng.IntN(4))))
				mem.MarkAll()
				ring(bells)
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			}
			return nil
		}))
		mem.Close()
		for _, x := range []*attack{a, b} {
			require.NoError(t, x.w.Close())
			ends[x.gone()]++
			_ = x.c.Close()
		}
	}
	t.Logf("how the rogue's connections ended: %v", ends)
	for _, d := range s.devices() {
		t.Logf("%s: %v", d.Name, d.Counters)
	}
}

// bells rings the gateway without end, then blocks the doorbell that the gateway rings, so that a loop would wait for
// ever. The gateway must go on after a moment and send the peer away, and the guardian must never have to act.
func (s *site) bells() {
	t := s.t
	for range 3 {
		before := held(eventfds(t))
		var own []int
		a := s.begin(negotiate.CarrierSHM, echoPort, func(*negotiate.CarrierOffer) { own = fresh(t, before) })
		both := fresh(t, before)
		letGo(before)
		require.Len(t, both, 2*len(own), "one loop here, one shard there")
		for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
			for range 100 {
				ring(both)
			}
			s.n.faults(100)
		}
		for _, fd := range own {
			_, _ = unix.Read(fd, make([]byte, 8))
			_, err := unix.Write(fd, encoding.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
			require.NoError(t, err)
			require.NoError(t, unix.SetNonblock(fd, false))
		}
		s.n.faults(1)
		end := time.Now().Add(hostileWait)
		for away := false; !away; { // an answer that finds this side's loop awake rings no doorbell
			require.True(t, time.Now().Before(end), "the peer is not sent away")
			time.Sleep(100 * time.Millisecond) // let this side's loop go to sleep: a goroutine with news for it rings
			_ = a.c.Say(rsocket.MakeImm(rsocket.OpData, 8), a.c.PeerConn.DataBuf, 8)
			select {
			case <-a.c.Down():
				away = true
			case <-time.After(time.Second):
			}
		}
		oneOf(t, a.brokeDown(), violated...)
	}
}

// fresh returns the eventfds that were not there before.
func fresh(t *testing.T, before []int) (list []int) {
	for _, fd := range eventfds(t) {
		if !slices.ContainsFunc(before, func(was int) bool { return sameFile(t, fd, was) }) {
			list = append(list, fd)
		}
	}
	return list
}

// sameFile tells whether two descriptors of this process refer to one open file.
func sameFile(t *testing.T, a, b int) bool {
	pid := uintptr(os.Getpid())
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, 0 /* KCMP_FILE */, uintptr(a), uintptr(b), 0)
	if errno == unix.EBADF { // closed meanwhile
		return false
	}
	require.Zero(t, errno)
	return r == 0
}

func ring(bells []int) {
	for _, fd := range bells {
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// eventfds returns the eventfds of this process.
func eventfds(t *testing.T) (list []int) {
	for name, target := range leak.OpenFiles() {
		if target == "anon_inode:[eventfd]" {
			fd, err := strconv.Atoi(name)
			require.NoError(t, err)
			list = append(list, fd)
		}
	}
	return list
}

// held duplicates each of them, until letGo: those of connections that have just ended may be closed at any time, and
// their numbers used again.
func held(eventfds []int) (list []int) {
	for _, fd := range eventfds {
		if own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			list = append(list, own)
		}
	}
	return list
}

func letGo(held []int) {
	for _, fd := range held {
		_ = unix.Close(fd)
	}
}
