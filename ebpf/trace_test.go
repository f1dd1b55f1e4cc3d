package ebpf

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/packet"
)

// get reads a number of struct traces.
func (tr *traces) get(t *testing.T, at int64) uint32 {
	t.Helper()
	return tr.word(at).Load()
}

// traced is what the programs think of a tuple.
func (d *Datapath) traced(t *testing.T, tuple Tuple) bool {
	t.Helper()
	k, err := tuple.key()
	require.NoError(t, err)
	return d.traces.get(t, tracesAt+4*int64(k.Lport^k.Rport)) >= d.traces.get(t, tracesFrom)
}

// TestTraces: entries leave a trace as long as they are there, however many are
// made while user space sweeps, and not for much longer.
func TestTraces(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	d := h1.open(config(accelerate(6000)))
	long := SweepLimits{Offered: time.Hour}
	to := addrPort(ghost4 + ":6000")
	const many = 300
	begun := make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-begun:
				return
			default:
				if _, err := d.Sweep(long); err != nil {
					t.Errorf("sweep: %v", err)
				}
			}
		}
	})
	var all []Tuple
	h1.do(func() {
		for range many {
			fd, local, err := beginHere(unix.AF_INET, to)
			if err != nil {
				t.Errorf("connect: %v", err)
				return
			}
			defer func() { _ = unix.Close(fd) }()
			all = append(all, Tuple{Local: local, Remote: to})
		}
	})
	close(begun)
	sweeping.Wait()
	require.Len(t, all, many)
	for range 4 {
		for _, tuple := range all {
			_, err := d.Flow(tuple)
			require.NoError(t, err)
			require.True(t, d.traced(t, tuple), "%v", tuple)
		}
		_, err := d.Sweep(long)
		require.NoError(t, err)
	}
	for _, tuple := range all {
		f, err := d.Flow(tuple)
		require.NoError(t, err)
		require.NoError(t, d.Delete(tuple, f.ISN))
		require.True(t, d.traced(t, tuple), "until it is swept")
	}
	for range 2 {
		_, err := d.Sweep(long)
		require.NoError(t, err)
	}
	for _, tuple := range all {
		require.False(t, d.traced(t, tuple), "%v", tuple)
	}
}

// TestTracesOfAFailedWalk: what a walk did not see may be there.
func TestTracesOfAFailedWalk(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	_, d := traceObjects(t, true)
	k := smcgwFlowKey{Lport: 7, Rport: 9}
	failing := func(func(*smcgwFlowKey)) error { return unix.EINTR }
	require.NoError(t, d.traces.renew(func(found func(*smcgwFlowKey)) error { found(&k); return nil }))
	for range 3 {
		require.ErrorIs(t, d.traces.renew(failing), unix.EINTR)
	}
	require.GreaterOrEqual(t, d.traces.get(t, tracesAt+4*int64(k.Lport^k.Rport)), d.traces.get(t, tracesFrom))
}

// traceObjects loads the programs alone. Without a start everything counts as traced.
func traceObjects(t *testing.T, start bool) (*objects, *Datapath) {
	t.Helper()
	spec, err := loadSmcgw()
	require.NoError(t, err)
	d := &Datapath{carriage: carriage{objs: new(objects)}}
	require.NoError(t, spec.LoadAndAssign(d.objs, nil))
	t.Cleanup(func() { _ = d.objs.Close() })
	if start {
		d.traces, err = newTraces(d.objs, spec.Variables["smcgw_traces"].Offset)
		require.NoError(t, err)
	}
	return d.objs, d
}

// TestPassesDecidesAlike: without an entry a packet has the same fate by the
// short look as by the whole one, whatever it looks like.
func TestPassesDecidesAlike(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	short, _ := traceObjects(t, true)
	whole, _ := traceObjects(t, false)
	for _, o := range []*objects{short, whole} {
		takeAddresses(t, o, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd77::1"))
	}
	r := rand.New(rand.NewPCG(1, 2))
	usual := []byte{2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}
	for range 4000 {
		pkt, proto := oddSegment(t, r, usual)
		frame := binary.BigEndian.AppendUint16(make([]byte, netdev.EtherLen-2), proto)
		frame = append(frame, pkt...)
		for _, p := range [][2]*bpf.Program{
			{short.EgressL2, whole.EgressL2}, {short.IngressL2, whole.IngressL2},
		} {
			var verdicts [2]uint32
			var out [2][]byte
			for i := range p {
				run := bpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
				var err error
				verdicts[i], err = p[i].Run(&run)
				require.NoError(t, err, "%x", frame)
				out[i] = run.DataOut
			}
			require.Equal(t, verdicts[1], verdicts[0], "%x", frame)
			require.Equal(t, out[1], out[0], "%x", frame)
		}
	}
	neutralised := func(o *objects) uint64 {
		n, err := sumCPUs(o.Stats)
		require.NoError(t, err)
		return n[slices.Index(statNames[:], "neutralised")]
	}
	require.Equal(t, neutralised(whole), neutralised(short))
	require.Positive(t, neutralised(short), "some carry our option")
}

// oddSegment makes a segment of options, addresses, flags and cuts by chance.
func oddSegment(t *testing.T, r *rand.Rand, usual []byte) (pkt []byte, proto uint16) {
	t.Helper()
	s := segment{src: addrPort("10.0.0.1:5000"), dst: addrPort("10.0.0.2:6000"), flags: uint8(r.Uint32()), seq: r.Uint32(), ack: r.Uint32()}
	proto = unix.ETH_P_IP
	if r.IntN(2) == 0 {
		s.src, s.dst, proto = addrPort("[fd77::1]:5000"), addrPort("[fd77::2]:6000"), unix.ETH_P_IPV6
	}
	if r.IntN(2) == 0 {
		s.flags = flagSYN
	}
	offer := smgw(roleOffer, uint16(r.Uint32()))
	switch r.IntN(6) {
	case 0:
		s.options = usual
	case 1:
		s.options = pad(usual, offer)
	case 2:
		s.options = pad(offer, timestamps())
	case 3:
		s.options = pad(offer, offer)
	case 4:
		s.options = pad(timestamps())
	}
	if r.IntN(4) == 0 {
		s.payload = make([]byte, r.IntN(64))
	}
	pkt = s.bytes(t)
	switch r.IntN(8) {
	case 0: // IP options, a fragment, another protocol
		pkt[r.IntN(min(len(pkt), 12))] = uint8(r.Uint32())
	case 1:
		pkt = pkt[:packet.IPv6Len+r.IntN(len(pkt)-packet.IPv6Len+1)] // less the kernel does not run
	case 2:
		pkt[r.IntN(len(pkt))] = uint8(r.Uint32())
	}
	return pkt, proto
}

// A sweep never takes back the trace that a program leaves meanwhile for what answers its
// SYN-ACK.
func TestFreshenBesideAnAnswer(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	const size = tracesAt + 4*(1<<16)
	m, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: size, MaxEntries: 1, Flags: 1 << 10}) // BPF_F_MMAPABLE
	require.NoError(t, err)
	defer m.Close()
	var o objects
	o.Globals = m
	tr, err := newTraces(&o, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.close()) }()
	for i := range 300_000 {
		tr.word(tracesAt).Store(0)
		var both sync.WaitGroup
		start := make(chan struct{})
		both.Go(func() { <-start; tr.word(tracesAt).Store(tr.now + 8) })
		close(start)
		tr.freshen(tracesAt)
		both.Wait()
		require.Equal(t, tr.now+8, tr.get(t, tracesAt), i)
	}
}
