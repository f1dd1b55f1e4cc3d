package ebpf

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// beginFrom is begin from a chosen port; the socket is returned.
func (h *host) beginFrom(from, to netip.AddrPort) (fd int) {
	h.t.Helper()
	h.do(func() {
		var err error
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(h.t, err)
		require.NoError(h.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		require.NoError(h.t, unix.Bind(fd, &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}))
		require.ErrorIs(h.t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}), unix.EINPROGRESS)
	})
	return fd
}

// A new connection of the app on a tuple the gateway still works on: the new SYN
// is offered, the gateway hears of the old one's end at once, and a late decision
// about the old one does not touch the new.
func TestReuseOfTuple(t *testing.T) {
	c := newClient(t, config(accelerate(6379)))
	from, to := addrPort("10.77.0.1:33333"), addrPort(ghost4+":6379")
	tuple := Tuple{Local: from, Remote: to}
	old := c.h1.beginFrom(from, to)
	first, err := c.d.Flow(tuple)
	require.NoError(t, err)
	states := []State{StateNegotiating, StateCompleting, StateCarrying}
	var took []time.Duration
	for i := range 15 {
		require.NoError(t, c.d.Transition(tuple, first.ISN, states[i%len(states)]))
		require.NoError(t, unix.Close(old))
		began := time.Now()
		old = c.h1.beginFrom(from, to)
		c.rec.wait(t, 30*time.Second, replacedBy(tuple, first.ISN))
		took = append(took, time.Since(began))
		second, err := c.d.Flow(tuple)
		require.NoError(t, err)
		if took[i] <= refuseIn || second.State != StateReleased { // the kernel has repeated it since
			require.Equal(t, StateOffered, second.State)
		}
		require.NotEqual(t, first.ISN, second.ISN)
		require.ErrorIs(t, c.d.Transition(tuple, first.ISN, StateReleased), ErrReplaced)
		require.ErrorIs(t, c.d.Delete(tuple, first.ISN), ErrReplaced)
		first = second
	}
	// A reader that is not woken reads every drainPeriod. Half of the times tell
	// that, however late some are.
	slices.Sort(took)
	t.Logf("told of within %v", took)
	require.Less(t, took[len(took)/2], drainPeriod/3, "replaced flows wake the reader")
	// Native this time: the entry goes, and the SYN leaves.
	require.NoError(t, c.d.Transition(tuple, first.ISN, StateCarrying))
	require.NoError(t, c.d.SetMode(ModeObserve))
	require.NoError(t, unix.Close(old))
	old = c.h1.beginFrom(from, to)
	c.rec.wait(t, 30*time.Second, replacedBy(tuple, first.ISN))
	require.Equal(t, StateNone, c.state(tuple))
	require.NoError(t, unix.Close(old))
}

// A full flow table sheds to native.
func TestFlowLimit(t *testing.T) {
	t.Parallel()
	cfg := config(accelerate(6379))
	cfg.MaxFlows = 16
	c := newClient(t, cfg)
	require.Eventually(t, func() bool {
		_, err := c.d.FlushPeers() // so slow a machine that the first SYN counts as unanswered
		require.NoError(t, err)
		for range 20 {
			_, err := c.h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
			require.NoError(t, err)
		}
		return nativeCount(t, c.d, SideClient, ReasonFlowLimit) > 3
	}, patience, 50*time.Millisecond)
	require.Zero(t, stat(t, c.d, "neutralise_failed"))
	use, err := c.d.MapUsage()
	require.NoError(t, err)
	require.Equal(t, 16, use[0].Capacity)
	require.LessOrEqual(t, use[0].Entries, 16)
}

// Another program that asked for header options keeps being asked after our
// offer: the flags belong to the socket.
func TestForeignHeaderOptions(t *testing.T) {
	requireRoot(t)
	mount, err := procfs.CgroupMount()
	require.NoError(t, err)
	base := makeCgroups(t, mount)
	defer enterCgroup(t, mount, "/")
	calls := foreignSockops(t, filepath.Join(mount, base))
	h1, h2 := newPair(t)
	h2.echo("6379")
	d := h1.open(config(accelerate(6379)))
	enterCgroup(t, mount, base)
	c, err := h1.connect("10.77.0.2:6379", patience)
	require.NoError(t, err)
	require.EqualValues(t, 1, stat(t, d, "offered"))
	before := calls()
	exchange(t, c)
	require.Greater(t, calls(), before)
	require.NoError(t, c.Close())
}

// An entry that has just ended is not forgotten, however old the connection is: it was the
// last to know what a leg's reset belongs to.
func TestEndIsRemembered(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCellHost(t)
	tuple := Tuple{Local: cellAddrs[0][0], Remote: cellAddrs[0][1]}
	k, err := tuple.key()
	require.NoError(t, err)
	c.d.traces.leave(k)
	pkt := c.link(cellPacket(t, "IN_SEGMENT", tuple.Local, tuple.Remote), true)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // segments of the peer, all the while
		defer close(done)
		c.do(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var in, out [skbSize]byte
				in[skbIfindex] = byte(c.device)
				_, _ = c.d.objs.IngressL2.Run(&bpf.RunOptions{Data: pkt, DataOut: make([]byte, 512), Repeat: 2000, Context: in, ContextOut: &out})
			}
		})
	}()
	defer func() { <-done }()
	defer close(stop)
	const (
		minute  = uint64(time.Minute)
		lingers = uint64(5 * time.Second) // LINGER_NS of ingress.h
	)
	// Each connection has its own ISN. With the same one, an old view of memory that the kernel
	// has used again for this key would be one of the new connection.
	isn := uint32(cellISN)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); isn++ {
		now := Now()
		require.NoError(t, c.d.objs.Flows.Put(k, smcgwFlow{
			Word: uint64(isn)<<32 | uint64(StateCarrying), OfferedAt: now - minute, ChangedAt: now - minute,
			Ifindex: cellValue(c.device), Out: cellValue(c.device),
		}))
		require.NoError(t, c.d.Transition(tuple, isn, StateDead, StateCarrying))
		f, err := c.d.Flow(tuple)
		if Now()-now > lingers {
			continue // so slow a machine that it may be forgotten
		}
		require.NoError(t, err)
		require.Equal(t, StateDead, f.State)
	}
}

// foreignSockops attaches a program that asks for header options on connect() and
// counts how often it is asked.
func foreignSockops(t *testing.T, dir string) func() uint64 {
	t.Helper()
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	p, err := bpf.NewProgram(&bpf.ProgramSpec{
		Type: bpf.SockOps, AttachType: bpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R7, asm.R6, 0, asm.Word), // op
			asm.JNE.Imm(asm.R7, 3, "length"),         // TCP_CONNECT_CB
			asm.Mov.Imm(asm.R2, 1<<6),
			asm.FnSockOpsCbFlagsSet.Call(),
			asm.Ja.Label("out"),
			asm.JNE.Imm(asm.R7, 14, "out").WithSymbol("length"), // HDR_OPT_LEN_CB
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: bpf.AttachCGroupSockOps, Program: p})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return func() (n uint64) {
		require.NoError(t, m.Lookup(uint32(0), &n))
		return n
	}
}
