package broker

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/inprocess"
)

// Config configures a broker. Its zero value selects every connection.
type Config struct {
	Limits     Limits     // zero fields: the defaults
	Policy     Policy     // nil: everything is selected
	Thresholds Thresholds // of the policy
	Scanner    Scanner    // nil: assume that no program makes raw system calls
	Namer      Namer      // nil: connections are named by addresses alone
	Log        *slog.Logger
	// Tell, if not nil, is called for each end that is promoted, ended or denied. The broker's lock is held: Tell must
	// not block or call a method of the broker.
	Tell func(what Told, of End, why inprocess.Why)
}

// Told is what has happened to an end.
type Told uint8

// An end was promoted; ended, or, if there is a reason, went back to the kernel for good; was denied, for now.
const (
	ToldPromoted Told = iota
	ToldEnded
	ToldDenied
)

// Thresholds say when a connection is worth asking for. News pages carry them to all processes.
type Thresholds struct {
	Calls uint32        // calls that have moved bytes; default 32
	Bytes uint64        // or bytes moved; default 64 KiB
	Spin  time.Duration // how long to poll a ring before sleeping; default none
}

func (t Thresholds) withDefaults() Thresholds {
	if t.Calls == 0 {
		t.Calls = 32
	}
	if t.Bytes == 0 {
		t.Bytes = 64 << 10
	}
	return t
}

// Question is what a policy decides on: one end of a connection, and its process.
type Question struct {
	Process Process
	Socket  Socket
	Program func() inprocess.Why // scans the program as it is now; inprocess.WhyNone: no objection
}

// Policy selects connections. Select returns inprocess.WhyNone for one that may be promoted. It is called for each
// question, concurrently by several goroutines; the client that asked waits for it.
type Policy interface {
	Select(Question) inprocess.Why
}

// Scanner reports whether the program of a process makes system calls other than through libc, which could read a
// socket behind the library's back. It is called again for every question that comes after a call, so it must cache
// what it finds. An error means that the program could not be examined.
type Scanner interface {
	RawCalls(pid int) (bool, error)
}

// Limits bound what the broker keeps and hands out. 0 means the default.
type Limits struct {
	Processes        int           // connected clients; 4096
	ProcessesPerUser int           // 1024
	Asks             int           // ends waiting for the other end; 16384
	AsksPerUser      int           // 8192
	Owed             int           // answers that the programs of one user do not take; 8192
	Conns            int           // promoted, or ended while a process has their memory; 65536, two descriptors each
	ConnsPerUser     int           // 32768
	ConnsPerCgroup   int           // 32768
	Memory           int64         // bytes reserved by connections; 256 GiB: sparse, so what could be touched
	MemoryPerUser    int64         // three quarters of Memory
	Share            int64         // a connection reserves at most 1/Share of what remains, or the smallest ring; 4096
	ShareOfRoom      int64         // and 1/ShareOfRoom of what remains of a cgroup's room; 16
	Wait             time.Duration // how long an end waits for the other; 60 s
	Runs             int           // runs whose sums are kept; as many as Processes
}

func defaultTo[T int | int64 | time.Duration](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

func (l Limits) withDefaults() Limits {
	defaultTo(&l.Processes, 4096)
	defaultTo(&l.ProcessesPerUser, 1024)
	defaultTo(&l.Asks, 16384)
	defaultTo(&l.AsksPerUser, 8192)
	defaultTo(&l.Owed, 8192)
	defaultTo(&l.Conns, 65536)
	defaultTo(&l.ConnsPerUser, 32768)
	defaultTo(&l.ConnsPerCgroup, 32768)
	defaultTo(&l.Memory, 256<<30)
	defaultTo(&l.MemoryPerUser, l.Memory/4*3)
	defaultTo(&l.Share, 4096)
	defaultTo(&l.ShareOfRoom, 16)
	defaultTo(&l.Wait, time.Minute)
	defaultTo(&l.Runs, l.Processes)
	return l
}

// reservation chooses the largest ring whose connection takes no more than its share of what remains, so rings become
// smaller as the memory is used up. The smallest ring is granted as long as it fits at all.
func reservation(remains, share int64) (order uint32, bytes int64, ok bool) {
	order = inprocess.OrderWithin(share, inprocess.OrderMax)
	bytes = inprocess.PairSize(order)
	return order, bytes, bytes <= remains
}

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
	Named         bool          // whether Sequences is known
	Before        inprocess.Why // the reason of its last denial, as the library says; WhyNone: there was none
}

func (s *Socket) path() path { return path{s.Netns, s.Local, s.Remote} }
