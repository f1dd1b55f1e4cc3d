package witness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// Connection is a connection that a program has initiated.
type Connection struct{ Local, Remote netip.AddrPort }

// patience bounds the wait for the ring to be read.
const patience = 10 * time.Second

const (
	// most bounds the connections that are kept, ring the bytes of those not read yet.
	most = 10_000
	ring = 1 << 20
	// connecting is BPF_SOCK_OPS_TCP_CONNECT_CB: the addresses are known, and the SYN has not left yet.
	connecting = 3
	// Consecutive members of struct bpf_sock_ops: family, remote_ip4, local_ip4, remote_ip6, local_ip6, remote_port and
	// local_port.
	first = 20
	words = 13
	size  = (words + 1) * 4
)

// Witness collects the connections that the programs of a cgroup initiate.
type Witness struct {
	events  *bpf.Map
	program *bpf.Program
	link    link.Link
	reader  *ringbuf.Reader
	done    chan struct{}
	flushed chan struct{} // gets a value for each flush of the ring

	mu    sync.Mutex // guards everything below
	seen  []Connection
	known map[Connection]bool
	more  int
}

// Attach starts collecting the connections of a cgroup and of those below it.
func Attach(cgroup string) (*Witness, error) {
	w := &Witness{done: make(chan struct{}), flushed: make(chan struct{}, 1), known: map[Connection]bool{}}
	if err := w.open(cgroup); err != nil {
		w.detach()
		return nil, fmt.Errorf("witness of cgroup %s: %w", cgroup, err)
	}
	go w.collect()
	return w, nil
}

func (w *Witness) open(cgroup string) (err error) {
	if w.events, err = bpf.NewMap(&bpf.MapSpec{Name: "smcgw_witness", Type: bpf.RingBuf, MaxEntries: ring}); err != nil {
		return err
	}
	if w.program, err = bpf.NewProgram(&bpf.ProgramSpec{
		Name: "smcgw_witness", Type: bpf.SockOps, License: "Apache-2.0", Instructions: instructions(w.events.FD()),
	}); err != nil {
		return err
	}
	if w.reader, err = ringbuf.NewReader(w.events); err != nil {
		return err
	}
	w.link, err = link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: bpf.AttachCGroupSockOps, Program: w.program})
	return err
}

// instructions copy the addresses of a new connection into the ring.
func instructions(events int) asm.Instructions {
	list := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.JNE.Imm(asm.R2, connecting, "out"),
	}
	for i := range int16(words) {
		list = append(list, asm.LoadMem(asm.R2, asm.R6, first+4*i, asm.Word), asm.StoreMem(asm.RFP, -size+4*i, asm.R2, asm.Word))
	}
	return append(list,
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, events),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -size),
		asm.Mov.Imm(asm.R3, size),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	)
}

// collect reads the ring until the ring is closed.
func (w *Witness) collect() {
	defer close(w.done)
	for {
		r, err := w.reader.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if errors.Is(err, ringbuf.ErrFlushed) {
			select {
			case w.flushed <- struct{}{}:
			default: // an earlier flush whose wait timed out
			}
			continue
		}
		if c, ok := parse(r.RawSample); err == nil && ok {
			w.add(c)
		}
	}
}

func (w *Witness) add(c Connection) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.known[c]: // the tuple is reused
	case len(w.seen) >= most:
		w.more++
	default:
		w.seen, w.known[c] = append(w.seen, c), true
	}
}

// Has reports whether c has been initiated.
func (w *Witness) Has(c Connection) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[c]
}

// Settle waits until all connections initiated before the call are known.
func (w *Witness) Settle() error {
	if err := w.reader.Flush(); err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	select {
	case <-w.flushed:
	case <-w.done:
	case <-time.After(patience):
		return errors.New("witness: its ring is not read")
	}
	return nil
}

// Connections returns the connections in the order in which they began, and how many more there were beyond the bound.
func (w *Witness) Connections() (list []Connection, more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Connection(nil), w.seen...), w.more
}

// Close detaches the program.
func (w *Witness) Close() {
	w.detach()
	<-w.done
}

func (w *Witness) detach() {
	if w.link != nil {
		_ = w.link.Close()
	}
	if w.reader != nil {
		_ = w.reader.Close()
	}
	_ = w.program.Close()
	_ = w.events.Close()
}

// parse decodes a record of the program. An IPv4 connection of an IPv6 socket has mapped addresses.
func parse(b []byte) (Connection, bool) {
	if len(b) < size {
		return Connection{}, false
	}
	const inet, inet6 = 2, 10
	var local, remote netip.Addr
	switch binary.NativeEndian.Uint32(b) {
	case inet:
		remote, local = netip.AddrFrom4([4]byte(b[4:8])), netip.AddrFrom4([4]byte(b[8:12]))
	case inet6:
		remote, local = netip.AddrFrom16([16]byte(b[12:28])).Unmap(), netip.AddrFrom16([16]byte(b[28:44])).Unmap()
	default:
		return Connection{}, false
	}
	return Connection{
		Local:  netip.AddrPortFrom(local, uint16(binary.NativeEndian.Uint32(b[48:]))),
		Remote: netip.AddrPortFrom(remote, uint16(binary.BigEndian.Uint32(b[44:]))),
	}, true
}
