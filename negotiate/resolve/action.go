package resolve

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// ResolverAction is one thing that the owner of a Resolver must do: SendResolution, AnswerPeer, ExpectPeer, ProvePeer,
// ProbePeer, PeerCapable, PeerNative, PeerGone or PeerForgotten. Actions are executed in the order in which they were
// returned.
type ResolverAction interface{ resolverAction() }

type (
	// SendResolution sends Bytes as one datagram from the datagram port at the address From.
	SendResolution struct {
		To    netip.AddrPort
		From  netip.Addr
		Bytes []byte
	}

	// AnswerPeer says that a query may be answered: it is authentic and came from its gateway's port. Find out what
	// Offers should return for it, which may take a while, and call Resolver.Answer.
	AnswerPeer struct {
		Query       Resolve
		From, Local netip.AddrPort
		seal        sealing
	}

	// ExpectPeer says that the gateway of Peer has been told our queue pairs and will send a probe to the address Local
	// from one of Offers, those of its offers that we can use, too. Echo the probe: only a host that has read our
	// answer at its address knows the Q_Key. From that probe on it may send datagrams, for TTL: its gateway starts as
	// soon as it has the echo, which can be before this side has proved anything. This does not make the peer capable;
	// send nothing but echoes to it.
	ExpectPeer struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Offers      []UDOffer
		TTL         time.Duration
	}

	// ProvePeer connects to Offer and sends a probe of its full path MTU. Answer with Resolver.Proved and the same
	// Proof when the echo has arrived, or when the connection cannot be made. It replaces every earlier ProvePeer for
	// Peer with another Proof. An Attempt above 1 sends the probe again.
	ProvePeer struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Proof       uint64
		Attempt     int
		Offer       UDOffer
	}

	// ProbePeer sends a probe to a proven peer that has been silent. Its echo counts as traffic (Resolver.Traffic).
	ProbePeer struct{ Peer netip.Addr }

	// PeerCapable says that datagrams to Peer may be carried to Offer, for TTL unless it is repeated. Only proven peers
	// are capable.
	PeerCapable struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Offer       UDOffer
		TTL         time.Duration
	}

	// PeerNative leaves datagrams to Peer to the network, with Reason for the owners of applications. Call
	// Resolver.Want again after TTL. Remote is true if the peer decided.
	PeerNative struct {
		Peer   netip.Addr
		Reason negotiate.Reason
		Remote bool
		TTL    time.Duration
	}

	// PeerGone says that the path to Peer, proven or being proved, is no longer usable: release it and what was carried
	// on it. PeerNative or ProvePeer follows.
	PeerGone struct{ Peer netip.Addr }

	// PeerForgotten withdraws what PeerNative said about Peer.
	PeerForgotten struct{ Peer netip.Addr }
)

func (SendResolution) resolverAction() {}
func (AnswerPeer) resolverAction()     {}
func (ExpectPeer) resolverAction()     {}
func (ProvePeer) resolverAction()      {}
func (ProbePeer) resolverAction()      {}
func (PeerCapable) resolverAction()    {}
func (PeerNative) resolverAction()     {}
func (PeerGone) resolverAction()       {}
func (PeerForgotten) resolverAction()  {}
