package ebpf

import (
	"encoding/binary"
	"fmt"
	"testing"

	bpf "github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A SYN or SYN-ACK of a gateway socket that was in a queue while its connection was
// given back to the network does not reach the application, whose own SYN is on its
// way. All others do, as if they had come from the network.
func TestLegSYN(t *testing.T) {
	requireRoot(t)
	spec, err := loadSmcgw()
	require.NoError(t, err)
	objs := new(objects)
	require.NoError(t, spec.LoadAndAssign(objs, nil))
	defer func() { require.NoError(t, objs.Close()) }()
	const local, foreign = 0x30000000, 0x40
	const drop, skbLen, markAt = 2, 192, 8
	for _, addrs := range [][2]string{{"10.0.0.2:7000", "10.0.0.1:5000"}, {"[fd00::2]:7000", "[fd00::1]:5000"}} {
		s := segment{src: addrPort(addrs[0]), dst: addrPort(addrs[1]), flags: flagSYN | flagACK, seq: 1, ack: 1001, options: timestamps()}
		frame := make([]byte, etherLen)
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
		if s.src.Addr().Is6() {
			binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
		}
		frame = append(frame, s.bytes(t)...)
		k, err := Tuple{Local: s.dst, Remote: s.src}.key()
		require.NoError(t, err)
		for state, want := range map[State]uint32{
			StateNone: tcxNext, StateNegotiating: drop, StateCompleting: tcxNext, StateCarrying: tcxNext, StateServing: tcxNext,
			StateRaw: tcxNext, StateWire: drop, StateReleased: drop, StateReturned: drop, StateDead: tcxNext,
		} {
			name := fmt.Sprintf("%v of %v", state, s.src)
			_ = objs.Flows.Delete(k)
			if state != StateNone {
				require.NoError(t, objs.Flows.Put(k, smcgwFlow{Word: 1000<<32 | uint64(state)}))
			}
			in, out := make([]byte, skbLen), make([]byte, skbLen)
			binary.NativeEndian.PutUint32(in[markAt:], local|foreign)
			got, err := objs.IngressL2.Run(&bpf.RunOptions{Data: frame, Context: in, ContextOut: out})
			require.NoError(t, err, name)
			require.Equal(t, want, got, name)
			if want == tcxNext {
				require.EqualValues(t, foreign, binary.NativeEndian.Uint32(out[markAt:]), name)
			}
		}
	}
}
