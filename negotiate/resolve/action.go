package resolve

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// ResolverAction is one thing the owner of a Resolver has to do, in the order given: one of SendResolution, AnswerPeer,
// ExpectPeer, ProvePeer, ProbePeer, PeerCapable, PeerNative, PeerGone, PeerForgotten.
type ResolverAction interface{ resolverAction() }

type (
	// SendResolution sends Bytes, one datagram, from the datagram port at the address From.
	SendResolution struct {
		To    netip.AddrPort
		From  netip.Addr
		Bytes []byte
	}

	// AnswerPeer says that a query has come that may be answered, from where its gateway sends and authentic. Find what
	// Offers is to return for it, which may take a while, and call Resolver.Answer.
	AnswerPeer struct {
		Query       Resolve
		From, Local netip.AddrPort
		seal        sealing
	}

	// ExpectPeer says that the gateway of Peer was told our queue pairs and will send a probe from one of Offers, which
	// are those of its that we have too, to the address Local. Echo it: only a host that has read our answer at that
	// address knows the Q_Key. From that probe on it may send datagrams, for TTL: its gateway sends as soon as it has
	// the echo, which can be before this side has proved anything. It does not make the peer capable, and nothing but
	// echoes is sent to it.
	ExpectPeer struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Offers      []UDOffer
		TTL         time.Duration
	}

	// ProvePeer makes a way to Offer, sends a probe of its full path MTU, and answers with Resolver.Proved and the same
	// Proof when the echo is there, or when the way cannot be made. It takes the place of every earlier ProvePeer for Peer
	// with another Proof. With an Attempt beyond the first the probe is sent again.
	ProvePeer struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Proof       uint64
		Attempt     int
		Offer       UDOffer
	}

	// ProbePeer sends a probe to a proven peer that was silent; its echo is heard like everything else (Resolver.Traffic).
	ProbePeer struct{ Peer netip.Addr }

	// PeerCapable says that datagrams to Peer may be carried to Offer, for TTL unless it is said again. Said of proven
	// peers only.
	PeerCapable struct {
		Peer, Local netip.Addr
		GatewayID   [16]byte
		Offer       UDOffer
		TTL         time.Duration
	}

	// PeerNative leaves datagrams to Peer to the network, and says so to applications' owners with Reason; ask again
	// (Resolver.Want) after TTL. Remote is true when the peer decided.
	PeerNative struct {
		Peer   netip.Addr
		Reason negotiate.Reason
		Remote bool
		TTL    time.Duration
	}

	// PeerGone says that the way to Peer, proven or being proved, is of no use any more: release it and what was carried
	// on it. PeerNative or ProvePeer follows.
	PeerGone struct{ Peer netip.Addr }

	// PeerForgotten says that what was said of Peer by PeerNative holds no longer.
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
