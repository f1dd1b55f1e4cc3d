package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrMemfd is memory of a peer that is not a sealed memfd of the announced size.
var ErrMemfd = errors.New("peer memory not acceptable")

// ErrEventfd is a doorbell of a peer that is not an eventfd.
var ErrEventfd = errors.New("peer doorbell not acceptable")

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// newMemfd makes sparse memory of sealed size.
func newMemfd(size uint64) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("smcgw-shm", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("smcgw-shm", flags)
	}
	if err != nil {
		return -1, fmt.Errorf("create memfd: %w", err)
	}
	if err := sealMemfd(fd, size); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sealMemfd(fd int, size uint64) error {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fmt.Errorf("size memfd: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals); err != nil {
		return fmt.Errorf("seal memfd: %w", err)
	}
	return nil
}

// checkMemfd accepts a peer's memory only if touching it can never fault: the size is sealed and as announced, and it
// is ordinary memory (a hugetlb memfd may run out of pages and raise SIGBUS).
func checkMemfd(fd int, size uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("read seals: %w: %w", err, ErrMemfd)
	}
	if seals&sizeSeals != sizeSeals {
		return fmt.Errorf("seals %#x: %w", seals, ErrMemfd)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w: %w", err, ErrMemfd)
	}
	if st.Size < 0 || uint64(st.Size) != size {
		return fmt.Errorf("size %d, announced %d: %w", st.Size, size, ErrMemfd)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("statfs: %w: %w", err, ErrMemfd)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("file system %#x: %w", fs.Type, ErrMemfd)
	}
	return nil
}

// checkEventfd checks that the fd is an eventfd and makes ringing it non-blocking.
func checkEventfd(fd int) error {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("read link of doorbell: %w: %w", err, ErrEventfd)
	}
	if name != "anon_inode:[eventfd]" {
		return fmt.Errorf("%s: %w", name, ErrEventfd)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("make doorbell non-blocking: %w: %w", err, ErrEventfd)
	}
	return nil
}

func newEventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("create eventfd: %w", err)
	}
	return fd, nil
}

// punch returns the pages of a range to the system; they read as zero afterwards.
func punch(fd int, off, n uint64) {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	_ = unix.Fallocate(fd, mode, int64(off), int64(n))
}
