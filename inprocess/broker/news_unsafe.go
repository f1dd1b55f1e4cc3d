package broker

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// news is a process's news page, which only the broker writes. It is not safe for concurrent use.
type news struct {
	page   []byte
	file   int      // for reading; handed to the process
	kept   int      // another, kept to see whether a process still has the page
	kernel sentBack // the entries whose bits are set in the page
}

// newNews makes a page. After it is mapped here, sealing keeps others from mapping it for writing.
func newNews() (*news, error) {
	fd, err := shared.New("smcgw-news", inprocess.NewsSize)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	page, err := unix.Mmap(fd, 0, inprocess.NewsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map news: %w", err)
	}
	n := &news{page: page, file: -1, kept: -1}
	if err = shared.Seal(fd, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err == nil {
		n.file, err = shared.Reopen(fd, unix.O_RDONLY)
	}
	if err == nil {
		n.kept, err = shared.Reopen(fd, unix.O_RDONLY)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	n.word(inprocess.NewsMagic).Store(inprocess.Magic)
	n.word(inprocess.NewsVersion).Store(inprocess.Version)
	return n, nil
}

// word returns the word at offset off, which must be one of the layout's.
func (n *news) word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(n.page[off:][:4:4])))
}

// kernelWord returns the word with the bit of an entry; index is below inprocess.EntriesMax.
func (n *news) kernelWord(index uint32) *atomic.Uint32 {
	return n.word(inprocess.NewsKernel + int(index/32)*4)
}

func bitOf(index uint32) uint32 { return 1 << (index % 32) }

// sent counts a record that was queued.
func (n *news) sent() { n.word(inprocess.NewsGrants).Add(1) }

// released counts a question whose socket has been closed. It needs no lock.
func (n *news) released() { n.word(inprocess.NewsQuestions).Add(1) }

// set publishes the switch, the slab entries whose ends must send by the kernel, and the thresholds. If again, ends
// that were refused may ask again, since policy, switch or thresholds may have changed.
func (n *news) set(off bool, kernel sentBack, t Thresholds, again bool) {
	for index := range n.kernel {
		if _, stays := kernel[index]; !stays {
			n.kernelWord(index).And(^bitOf(index))
		}
	}
	for index := range kernel {
		n.kernelWord(index).Or(bitOf(index))
	}
	n.kernel = kernel
	var o uint32
	if off {
		o |= inprocess.OffAll
	}
	if len(kernel) > 0 {
		o |= inprocess.OffSome
	}
	n.word(inprocess.NewsOff).Store(o)
	n.word(inprocess.NewsCalls).Store(t.Calls)
	n.word(inprocess.NewsSpin).Store(uint32(t.Spin.Microseconds()))
	(*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(n.page[inprocess.NewsBytes:][:8:8]))).Store(t.Bytes)
	if again {
		n.word(inprocess.NewsPolicy).Add(1)
	}
}

// handed closes the descriptor that the process has been given.
func (n *news) handed() { shared.Close(&n.file) }

// leave unmaps the page of a process that has left, and returns the descriptor that tells whether others still have it.
// The caller owns it.
func (n *news) leave() (kept int) {
	kept, n.kept = n.kept, -1
	n.close()
	return kept
}

func (n *news) close() {
	shared.Close(&n.file, &n.kept)
	_ = unix.Munmap(n.page)
	n.page = nil
}
