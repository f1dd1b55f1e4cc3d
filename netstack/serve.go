package netstack

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/packet"
)

// newServerFlow returns the flow of a proved connection.
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

// notBegun reports a connection that could not begin, unless it has already begun.
func (s *Stack) notBegun(syn SYN, err error) {
	if !errors.Is(err, errRepeated) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, err)
	}
}

// withoutEndpoint is gVisor's handler for segments without an endpoint, which may just have gone. A SYN is dropped;
// anything else is answered with a reset.
func withoutEndpoint(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) (handled bool) {
	return packet.TCP(pkt.TransportHeader().Slice()).Flags()&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN
}
