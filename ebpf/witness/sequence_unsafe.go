package witness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// optionLevel is the level of the private option.
const optionLevel = 0x49434d53

// answerSize is the size of the answer: snd_nxt, snd_una, rcv_nxt, padding, and the 64-bit bytes_acked and
// bytes_received.
const answerSize = 32

// Offsets in struct bpf_sockopt and struct bpf_tcp_sock.
const (
	optSk, optVal, optEnd, optLevel, optLen, optRet = 0, 8, 16, 24, 32, 36

	tcpRcvNxt, tcpSndNxt, tcpSndUna, tcpReceived, tcpAcked = 16, 20, 24, 80, 88
)

// optionIdle is how long the program stays attached after a question. While it is attached, getsockopt(2) takes 0.2 µs
// longer for every socket of the host.
const optionIdle = time.Second

// Sequences returns sequence numbers for the sockets of a cgroup and of those below it. It is safe for concurrent use.
type Sequences struct {
	cgroup  string
	program *bpf.Program

	mu     sync.Mutex // guards everything below
	link   link.Link  // nil if not attached
	last   time.Time
	timer  *time.Timer // detaches; set together with link
	closed bool
}

// LoadSequences loads the program for the cgroup at a path (the root stands for all sockets of the host), and checks
// that it can be attached.
func LoadSequences(cgroup string) (*Sequences, error) {
	p := &Sequences{cgroup: cgroup}
	var err error
	if p.program, err = bpf.NewProgram(&bpf.ProgramSpec{
		Name: "smcgw_sequence", Type: bpf.CGroupSockopt, AttachType: bpf.AttachCGroupGetsockopt, License: "Apache-2.0", Instructions: answerInstructions(),
	}); err != nil {
		return nil, fmt.Errorf("sequence numbers: %w", err)
	}
	if err := p.attach(); err != nil {
		return nil, errors.Join(err, p.program.Close())
	}
	return p, nil
}

// attach attaches the program for optionIdle.
func (p *Sequences) attach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("sequence numbers: %w", os.ErrClosed)
	}
	p.last = time.Now()
	if p.link != nil {
		return nil
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: p.cgroup, Attach: bpf.AttachCGroupGetsockopt, Program: p.program})
	if err != nil {
		return fmt.Errorf("sequence numbers: attach to %s: %w", p.cgroup, err)
	}
	p.link, p.timer = l, time.AfterFunc(optionIdle, p.rest)
	return nil
}

// rest detaches the program if no question has come for optionIdle.
func (p *Sequences) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return
	}
	if wait := optionIdle - time.Since(p.last); wait > 0 {
		p.timer.Reset(wait)
		return
	}
	_ = p.link.Close()
	p.link = nil
}

// Close detaches the program. Later questions fail.
func (p *Sequences) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var err error
	if p.link != nil {
		p.timer.Stop()
		err = p.link.Close()
		p.link = nil
	}
	return errors.Join(err, p.program.Close())
}

// answerInstructions answer the private option and leave all others alone.
func answerInstructions() asm.Instructions {
	list := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, optLevel, asm.Word),
		asm.JNE.Imm(asm.R2, optionLevel, "out"),
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, optVal, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, optEnd, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Add.Imm(asm.R3, answerSize),
		asm.JGT.Reg(asm.R3, asm.R2, "out"),
		asm.LoadMem(asm.R1, asm.R6, optSk, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "out"),
		asm.FnTcpSock.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
	}
	for at, from := range []int16{tcpSndNxt, tcpSndUna, tcpRcvNxt} {
		list = append(list, asm.LoadMem(asm.R1, asm.R0, from, asm.Word), asm.StoreMem(asm.R7, int16(4*at), asm.R1, asm.Word))
	}
	for at, from := range []int16{tcpAcked, tcpReceived} {
		list = append(list, asm.LoadMem(asm.R1, asm.R0, from, asm.DWord), asm.StoreMem(asm.R7, int16(16+8*at), asm.R1, asm.DWord))
	}
	return append(list,
		asm.Mov.Imm(asm.R1, answerSize),
		asm.StoreMem(asm.R6, optLen, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.R6, optRet, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	)
}

// numbers are the sequence numbers of the first byte of either direction, that is, the initial one plus 1, as one end
// has them.
type numbers struct{ mine, peer uint32 }

// ErrMoves means that the numbers of the connection differed each time they were read.
var ErrMoves = errors.New("sequence numbers: the connection moves")

// mostLooks is how often a socket is read at most, until it does not change between two reads.
const mostLooks = 64

// Of returns the sequence numbers of the first byte of either direction of an established connection, that is, the
// initial one plus 1. The caller keeps owning the descriptor. Of also tells whether this end is the client: the
// kernel's bytes_acked includes the client's SYN, while the count of sent bytes does not. That cannot be told while
// more is being sent, and never after a device has rejected a segment, which counts as sent; then the result is the
// caller's assumption client.
func (p *Sequences) Of(fd int, client bool) (mine, peer uint32, isClient bool, err error) {
	n, client, err := p.look(fd, client)
	return n.mine, n.peer, client, err
}

func (p *Sequences) look(fd int, client bool) (n numbers, isClient bool, err error) {
	if err := p.attach(); err != nil {
		return n, false, err
	}
	var last [answerSize]byte
	var before, after *unix.TCPInfo
	known := false
	for range mostLooks {
		var a [answerSize]byte
		if err = askNumbers(fd, &a); err == nil {
			after, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		}
		if err != nil {
			return n, false, fmt.Errorf("sequence numbers: %w", err)
		}
		if before != nil && after.Bytes_sent == before.Bytes_sent && after.Bytes_retrans == before.Bytes_retrans {
			if is, ok := side(a, after.Bytes_sent-after.Bytes_retrans); ok {
				client = is
			}
			return numbersOf(a, client), client, nil
		}
		if before != nil && numbersOf(a, client) == numbersOf(last, client) {
			n, known = numbersOf(a, client), true
		}
		before, last = after, a
	}
	if !known {
		return n, false, ErrMoves
	}
	return n, client, nil
}

// askNumbers reads the private option.
func askNumbers(fd int, a *[answerSize]byte) error {
	n := uint32(len(a))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), optionLevel, 1, uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(&n)), 0)
	switch {
	case errno != 0:
		return errno
	case n != answerSize:
		return fmt.Errorf("%d bytes: %w", n, unix.EPROTO)
	}
	return nil
}

// numbersOf computes the numbers from what the answer says was acknowledged in either direction.
func numbersOf(a [answerSize]byte, client bool) numbers {
	e := binary.NativeEndian
	n := numbers{mine: e.Uint32(a[4:]) - uint32(e.Uint64(a[16:])), peer: e.Uint32(a[8:]) - uint32(e.Uint64(a[24:]))}
	if client {
		n.mine++
	}
	return n
}

// side tells whether an answer is that of the client, given the number of sent bytes. ok is false if the kernel's
// counts do not agree.
func side(a [answerSize]byte, sent uint64) (client, ok bool) {
	d := binary.NativeEndian.Uint32(a[:]) - uint32(sent) - numbersOf(a, false).mine
	return d == 1, d <= 1
}
