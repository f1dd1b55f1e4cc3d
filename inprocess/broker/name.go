package broker

import "net/netip"

// Sequences are the initial sequence numbers of a connection, as one of its ends has them. Address translation does not
// change them, so they identify a connection across it.
type Sequences struct{ Mine, Peer uint32 }

func (s Sequences) mirror() Sequences { return Sequences{s.Peer, s.Mine} }

// Namer reads the initial sequence numbers of a connected TCP socket, and its side: if the kernel cannot tell the side,
// the one that the caller passed. The descriptor stays the caller's. If Of fails, the addresses name the connection,
// within its network namespace.
type Namer interface {
	Of(fd int, client bool) (mine, peer uint32, isClient bool, err error)
}

// path identifies a connection by its addresses.
type path struct {
	netns         uint64
	local, remote netip.AddrPort
}

func (p path) mirror() path { return path{p.netns, p.remote, p.local} }

// Role is the side of an end.
type Role uint8

const (
	RoleClient Role = iota // has connected
	RoleServer             // has accepted
)

var roleNames = [...]string{"client", "server"}

// String returns the name that users see.
func (r Role) String() string { return roleNames[r] }

// MarshalText returns [Role.String].
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Socket is what the kernel says about the socket of an end.
type Socket struct {
	Local, Remote netip.AddrPort // IPv4 is never mapped
	Netns, Cookie uint64
	Role          Role // by the kernel's counts, which include the client's SYN; else as the library says
	Sequences     Sequences
	Named         bool // whether Sequences is known
}

func (s *Socket) path() path { return path{s.Netns, s.Local, s.Remote} }
