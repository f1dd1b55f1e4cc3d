package ebpf

import (
	"encoding/binary"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// BenchmarkTransition is a state change by user space.
func BenchmarkTransition(b *testing.B) {
	spec, err := loadSmcgw()
	require.NoError(b, err)
	d := &Datapath{carriage: carriage{objs: new(objects)}}
	require.NoError(b, spec.LoadAndAssign(d.objs, nil))
	defer func() { _ = d.objs.Close() }()
	t := Tuple{addrPort("10.0.0.1:1"), addrPort("10.0.0.2:2")}
	k, err := t.key()
	require.NoError(b, err)
	require.NoError(b, d.objs.Flows.Put(k, smcgwFlow{Word: 1}))
	for b.Loop() {
		if err := d.Transition(t, 0, StateCarrying); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSweep walks 20,000 flows of which none is stale.
func BenchmarkSweep(b *testing.B) {
	spec, err := loadSmcgw()
	require.NoError(b, err)
	d := &Datapath{carriage: carriage{objs: new(objects)}}
	require.NoError(b, spec.LoadAndAssign(d.objs, nil))
	defer func() { _ = d.objs.Close() }()
	d.traces, err = newTraces(d.objs, spec.Variables["smcgw_traces"].Offset)
	require.NoError(b, err)
	for i := range 20000 {
		k := smcgwFlowKey{Family: family4, Lport: uint16(i)}
		require.NoError(b, d.objs.Flows.Put(k, smcgwFlow{Word: uint64(StateCarrying)}))
	}
	require.Len(b, flows(b, d), 20000)
	for b.Loop() {
		if _, err := d.Sweep(SweepLimits{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDatagram is what a datagram costs at egress: on a host without a rule
// about UDP, on one with rules that do not select it, and as one that is carried.
func BenchmarkDatagram(b *testing.B) {
	spec, err := loadSmcgw()
	require.NoError(b, err)
	// A repeated run finds the mark of the one before: none that counts.
	require.NoError(b, spec.Variables["mark_mask"].Set(uint32(0)))
	require.NoError(b, spec.Variables["mark_pass"].Set(uint32(1)))
	objs := new(objects)
	require.NoError(b, spec.LoadAndAssign(objs, nil))
	defer func() { _ = objs.Close() }()
	u := datagram{src: addrPort("10.0.0.1:5000"), dst: addrPort("10.0.0.2:9000"), payload: make([]byte, 1000)}
	frame := make([]byte, netdev.EtherLen)
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	frame = append(frame, u.bytes()...)
	tuple, err := Tuple{Local: u.src, Remote: u.dst}.key()
	require.NoError(b, err)
	peer, err := peerKey(u.dst.Addr(), 0)
	require.NoError(b, err)
	require.NoError(b, objs.DatagramPeers.Put(peer, smcgwDgramPeer{Capable: 1}))
	for _, v := range []struct {
		name  string
		looks uint32
		state uint8
		want  uint32
	}{{"no rule", 0, dgramNative, tcxNext}, {"not selected", 1, dgramNative, tcxNext}, {"carried", 1, dgramSelected, tcxRedirect}} {
		b.Run(v.name, func(b *testing.B) {
			control := smcgwControl{Mode: uint32(ModeEnforce), Datagrams: v.looks, Epoch: 1, Share: uint32(ShareAll), HeartbeatTimeout: uint64(time.Hour)}
			require.NoError(b, objs.Control.Put(uint32(0), control))
			require.NoError(b, objs.Beat.Put(uint32(0), Now()))
			require.NoError(b, objs.Datagrams.Put(tuple, smcgwDgram{State: v.state, Epoch: 1, Told: ReasonPolicy, Reason: ReasonPolicy, Ifindex: 1}))
			require.NoError(b, objs.Devices.Put(uint32(1), smcgwDevice{Flags: deviceOffer, L2len: netdev.EtherLen}))
			run := bpf.RunOptions{Data: frame, Repeat: uint32(b.N)}
			began := time.Now()
			got, err := objs.EgressL2.Run(&run)
			require.NoError(b, err)
			b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N), "ns/datagram")
			require.Equal(b, v.want, got)
		})
	}
}

// Verdicts of tcx programs.
const (
	tcxNext     = 0xffffffff
	tcxRedirect = 7
)
