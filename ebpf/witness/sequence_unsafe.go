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

// optionLevel is that of the private option.
const optionLevel = 0x49434d53

// answerSize is that of the answer: snd_nxt, snd_una, rcv_nxt, nothing, and bytes_acked and bytes_received, which have 64 bits.
const answerSize = 32

// Where the words of struct bpf_sockopt and struct bpf_tcp_sock are.
const (
	optSk, optVal, optEnd, optLevel, optLen, optRet = 0, 8, 16, 24, 32, 36

	tcpRcvNxt, tcpSndNxt, tcpSndUna, tcpReceived, tcpAcked = 16, 20, 24, 80, 88
)

// optionIdle is how long the program stays attached after a question: while it is, getsockopt(2) takes 0.2 µs longer for every
// socket of the host.
const optionIdle = time.Second

// Sequences answers for the sockets of a cgroup and of those below it. Its methods may be called by several goroutines.
type Sequences struct {
	cgroup  string
	program *bpf.Program

	mu     sync.Mutex // guards the rest
	link   link.Link  // nil: it is not attached
	last   time.Time
	timer  *time.Timer // detaches; set with link
	closed bool
}

// LoadSequences prepares the program for the cgroup at a path: the root, for all sockets of the host. That it can be attached is
// tried.
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

// attach has the program answer for a while.
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

// rest detaches the program if nobody has asked for a while.
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

// Close detaches the program. Nothing is asked any more.
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

// answerInstructions answer the option, and leave others as they are.
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

// numbers are the sequence numbers of the first bytes of both directions, as one end has them: each the initial one and 1.
type numbers struct{ mine, peer uint32 }

// ErrMoves means that the numbers of the connection were others each time that they were read.
var ErrMoves = errors.New("sequence numbers: the connection moves")

// mostLooks is how often a socket is looked at until nothing of it moves in between.
const mostLooks = 64

// Of asks for the sequence numbers of the first bytes of both directions of an established connection, whose descriptor stays
// the caller's: each the initial one and 1. It tells whether the connection is the client's. The kernel's bytes_acked has the client's SYN, and the bytes that were sent have not. While more is sent that cannot be told, nor
// ever after a device has refused a segment, which counts as sent: then the connection is what the caller takes it for.
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

// numbersOf are those of an answer, by what the peers have acknowledged.
func numbersOf(a [answerSize]byte, client bool) numbers {
	e := binary.NativeEndian
	n := numbers{mine: e.Uint32(a[4:]) - uint32(e.Uint64(a[16:])), peer: e.Uint32(a[8:]) - uint32(e.Uint64(a[24:]))}
	if client {
		n.mine++
	}
	return n
}

// side tells that of an answer, when so many bytes had been sent; not ok: the kernel's counts do not agree.
func side(a [answerSize]byte, sent uint64) (client, ok bool) {
	d := binary.NativeEndian.Uint32(a[:]) - uint32(sent) - numbersOf(a, false).mine
	return d == 1, d <= 1
}
