package netstack

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/packet"
)

// newServerFlow makes the flow of a connection that was proved.
func (s *Stack) newServerFlow(k tupleKey, syn SYN, proof *cookieProof) *flow {
	f := &flow{
		key: k, server: true, isn: syn.ISN, nonce: syn.Nonce, wq: &waiter.Queue{},
		serve: &serving{proof: proof},
	}
	f.awaited.Store(syn.ISN + 1)
	f.una.Store(proof.ISS + 1)
	f.sent.Store(proof.ISS + 1)
	f.segMax.Store(s.segMax(syn.Raw, proof.Ask.PeerMSS()))
	return f
}

// notBegun tells of a connection that there is no room for, unless it has begun already.
func (s *Stack) notBegun(syn SYN, err error) {
	if !errors.Is(err, errRepeated) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, err)
	}
}

// withoutEndpoint is gVisor's handler for segments without an endpoint: it may have just gone. A
// SYN is dropped, anything else answered by a reset.
func withoutEndpoint(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) (handled bool) {
	return packet.TCP(pkt.TransportHeader().Slice()).Flags()&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN
}
