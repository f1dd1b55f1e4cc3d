package ebpf

import (
	"context"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Offsets in struct __sk_buff, and a tag of redirect.h.
const (
	skbTag     = 44
	tagLegSYN  = 0x5313
	seenTagged = 1 // slots of what a look after our program sees
	seenBare   = 0
)

// attachAsm attaches a program to the ingress of w0.
func (h *host) attachAsm(where link.Anchor, code asm.Instructions) {
	h.t.Helper()
	p, err := bpf.NewProgram(&bpf.ProgramSpec{Type: bpf.SchedCLS, Instructions: code, License: "GPL"})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = p.Close() })
	h.do(func() {
		index, err := linkIndex("w0")
		require.NoError(h.t, err)
		l, err := attachTCX(p, index, bpf.AttachTCXIngress, where)
		require.NoError(h.t, err)
		h.t.Cleanup(func() { _ = l.Close() })
	})
}

// legSYNs makes everything that arrives on w0 a SYN of a leg, and returns the
// counters of what our program lets pass, with its tag and without.
func (h *host) legSYNs() *bpf.Map {
	h.t.Helper()
	seen, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = seen.Close() })
	h.attachAsm(link.Head(), asm.Instructions{
		asm.Mov.Imm(asm.R2, tagLegSYN),
		asm.StoreMem(asm.R1, skbTag, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, -1),
		asm.Return(),
	})
	h.attachAsm(link.Tail(), asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbTag, asm.Word),
		asm.StoreImm(asm.RFP, -4, seenBare, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "look"),
		asm.StoreImm(asm.RFP, -4, seenTagged, asm.Word),
		asm.LoadMapPtr(asm.R1, seen.FD()).WithSymbol("look"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	})
	return seen
}

// A SYN or SYN-ACK of a leg that was in a queue while its connection became
// native does not reach the application, whose own SYN is on its way. All others
// do, as if they had come from the network, and without the tag.
func TestLegSYN(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	d := h1.open(config(accelerate(7000)))
	seen := h1.legSYNs()
	count := func(slot uint32) (n uint64) {
		require.NoError(t, seen.Lookup(slot, &n))
		return n
	}
	for _, addrs := range [][2]string{{"10.77.0.2:7000", "10.77.0.1:5000"}, {"[fd77::2]:7000", "[fd77::1]:5000"}} {
		s := segment{src: addrPort(addrs[0]), dst: addrPort(addrs[1]), flags: flagSYN | flagACK, seq: 1, ack: 1001, options: timestamps()}
		k, err := Tuple{Local: s.dst, Remote: s.src}.key()
		require.NoError(t, err)
		for state, passes := range map[State]bool{
			StateNone: false, StateNegotiating: false, StateCompleting: true, StateCarrying: true, StateServing: true,
			StateRaw: true, StateWire: false, StateReleased: false, StateReturned: false, StateDead: true,
		} {
			name := fmt.Sprintf("%v of %v", state, s.src)
			_ = d.objs.Flows.Delete(k)
			if state != StateNone {
				now := Now()
				require.NoError(t, d.objs.Flows.Put(k, smcgwFlow{Word: 1000<<32 | uint64(state), OfferedAt: now, ChangedAt: now}))
			}
			passed, dropped := count(seenBare), stat(t, d, "leg_ingress_drop")
			h2.send(h1, s.bytes(t))
			require.Eventually(t, func() bool {
				if stat(t, d, "leg_ingress_drop") > dropped {
					return !passes
				}
				return passes && count(seenBare) > passed
			}, patience, time.Millisecond, name)
		}
	}
	require.Zero(t, count(seenTagged))
}

// congestionOf returns the congestion control of a TCP connection.
func congestionOf(c net.Conn) (name string, err error) {
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return "", err
	}
	if cerr := rc.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); cerr != nil {
		return "", cerr
	}
	return name, err
}

// chosen is what the programs of this test choose, whatever the host's default is.
const chosen = "cubic"

func chooseCongestion(_, _ string, rc syscall.RawConn) (err error) {
	if cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, chosen)
	}); cerr != nil {
		return cerr
	}
	return err
}

// connectChoosing is connect of a program that chooses its congestion control.
func (h *host) connectChoosing(addr string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: patience, Control: chooseCongestion}
	d.SetMultipathTCP(false)
	h.do(func() { c, err = d.Dial("tcp", addr) })
	return c, err
}

// tellCongestion serves the name of its own congestion control to every client.
func (h *host) tellCongestion(port string) {
	h.t.Helper()
	var ln net.Listener
	var err error
	lc := net.ListenConfig{Control: chooseCongestion}
	lc.SetMultipathTCP(false)
	h.do(func() { ln, err = lc.Listen(context.Background(), "tcp", ":"+port) })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			name, err := congestionOf(c)
			if err != nil {
				name = err.Error()
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
}

// What applications of a carried connection send goes to the gateway beside them: their
// congestion control does not look for the capacity of a network. Other
// connections keep theirs.
func TestLocalLegsArePlain(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		t.Run(v.name, func(t *testing.T) {
			h1, h2 := newPair(t)
			h2.tellCongestion("6379")
			h2.tellCongestion("6380")
			d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
			ln := h1.listen(d1, v.network)

			target := net.JoinHostPort(v.addr, "6379")
			app := make(chan asyncConn, 1)
			go func() {
				c, err := h1.connectChoosing(target)
				app <- asyncConn{c, err}
			}()
			f1, _, back := met(t, d1, d2)
			require.NoError(t, d2.Transition(back, f1.ISN, StateServing, StateWire))
			dial := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(f1.Tuple.Local), Control: gatewaySocket(v.network)}
			dial.SetMultipathTCP(false)
			var leg2 net.Conn
			var err error
			legsOf(t, d2).do(func() { leg2, err = dial.Dial(v.network, target) })
			require.NoError(t, err)
			require.Equal(t, "reno", told(t, leg2), "the server")

			require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCompleting, StateNegotiating))
			require.NoError(t, d1.InjectApp(f1.SYN))
			require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
			leg1, err := ln.AcceptTCP()
			require.NoError(t, err)
			defer func() { _ = leg1.Close() }()
			a := <-app
			require.NoError(t, a.err)
			defer func() { _ = a.c.Close() }()
			name, err := congestionOf(a.c)
			require.NoError(t, err)
			require.Equal(t, "reno", name, "the client")

			native, err := h1.connectChoosing(net.JoinHostPort(v.addr, "6380"))
			require.NoError(t, err)
			name, err = congestionOf(native)
			require.NoError(t, err)
			require.Equal(t, chosen, name)
			require.Equal(t, chosen, told(t, native))
		})
	}
}

// told returns all that a connection says, and closes it.
func told(t *testing.T, c net.Conn) string {
	t.Helper()
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(b)
}
