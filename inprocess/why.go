package inprocess

import "fmt"

// Why is the reason why an end is native or went back to the kernel. Numbers and names are stable.
type Why uint32

const (
	WhyNone       Why = iota // it is not native
	WhyPolicy                // no rule selects it
	WhyOff                   // the mode or the switch
	WhyNoPeer                // the other end never asked
	WhyRawCalls              // the program makes system calls of its own
	WhyCounts                // bytes bypassed the library
	WhyOption                // a socket option or call that the ring cannot serve
	WhyShared                // more than one process has the socket
	WhyPassed                // handed to another program
	WhyPath                  // the path is shaped, or no longer acknowledged
	WhyLimit                 // a quota or table is full
	WhyMemory                // the system, or the budget, refused memory
	WhyProtocol              // the peer's memory is inconsistent
	WhyRecalled              // the peer asked for the kernel
	WhyDescriptor            // no descriptor was free for the control socket
	WhySandbox               // the program has denied itself system calls (seccomp)
	WhyUnseen                // the broker cannot see the program
	WhySlow                  // the carrier, or the gateway, delivered nothing
	WhyUnreadable            // the broker could not examine the program
	WhyEnded                 // one side had shut down or closed before the switch
	whyEnd
)

// WhyCount is one more than the largest reason.
const WhyCount = int(whyEnd)

var whys = [whyEnd]struct{ name, meaning, fix string }{
	WhyNone:       {"none", "there is no reason against it", ""},
	WhyPolicy:     {"policy", "no rule selects the connection, or the rollout leaves it out", "smcgw policy shows the rules and their percent; action: accelerate selects."},
	WhyOff:        {"off", "the mode or the switch is off, or only observes", "smcgw on; mode: enforce."},
	WhyNoPeer:     {"no_peer", "the other end did not ask: it has no library, is on another host or behind a proxy, or has moved too little", "Start both programs with the library (smcgw run)."},
	WhyRawCalls:   {"raw_calls", "the program has system calls of its own, past libc, that may read a socket", "smcgw doctor --program PATH shows them. Such a program stays native."},
	WhyCounts:     {"counts", "bytes went past the library: its counts are not the kernel's", "Another program reads or writes the socket, or this one by system calls of its own. It stays native."},
	WhyOption:     {"option", "the program uses a socket option or a call that the ring cannot serve", "None: the connection works as it does natively."},
	WhyShared:     {"shared", "more than one process has the socket", "None: the connection works as it does natively."},
	WhyPassed:     {"passed", "the socket was handed to another program, by exec or by a message", "None: the connection works as it does natively."},
	WhyPath:       {"path", "the path shapes traffic, or no longer acknowledges it", "tc qdisc shows what shapes; in_process.shaped: on promotes all the same. A path that does not acknowledge: look at the firewall."},
	WhyLimit:      {"limit", "a quota or a table is full", "65536 promoted connections, of which one user and one cgroup may have half; 1024 programs of one user, 4096 in all; half a processor of the daemon's time for one user's programs; the limit on descriptors."},
	WhyMemory:     {"no_memory", "the system refused memory, or what in_process.memory or the limit of a cgroup allows is used up", "in_process.memory, memory.max of the program's cgroup, of which rings get an eighth, and the memory that the host has."},
	WhyProtocol:   {"protocol_error", "the peer's memory said what cannot be", "Report it, with smcgw bugreport."},
	WhyRecalled:   {"recalled", "the peer asked for it", "None: its own end has the reason."},
	WhyDescriptor: {"descriptor", "the process had no descriptor left for the broker's socket", "Raise its limit (ulimit -n)."},
	WhySandbox:    {"sandbox", "the program has the kernel refuse it system calls that the library needs (seccomp)", "None: the connection works as it does natively."},
	WhySlow:       {"slow_carrier", "the carrier between the hosts, or the gateway, delivered nothing for a while", "Look at the load of both hosts and the loss between them (smcgw peers, smcgw devices)."},
	WhyUnseen:     {"unseen", "the daemon cannot see the program: it is in a PID namespace beside its own", "Start the daemon in the PID namespace of the host (--pid host, hostPID)."},
	WhyUnreadable: {"unreadable", "the daemon could not examine all code that the program has loaded", "Restart the program if a file that it has loaded was replaced. The daemon needs CAP_SYS_PTRACE."},
	WhyEnded:      {"ended", "one side had shut down or closed the connection before it could be promoted", "None: the connection was too short."},
}

// String returns the name that users see.
func (w Why) String() string {
	if w < whyEnd {
		return whys[w].name
	}
	return fmt.Sprintf("why %d", uint32(w))
}

// Meaning explains the reason in a sentence, for the documentation.
func (w Why) Meaning() string {
	if w < whyEnd {
		return whys[w].meaning
	}
	return ""
}

// Fix returns what can be done about it.
func (w Why) Fix() string {
	if w < whyEnd {
		return whys[w].fix
	}
	return ""
}

// MarshalText returns [Why.String].
func (w Why) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Whys returns all reasons but WhyNone.
func Whys() []Why {
	list := make([]Why, 0, whyEnd-1)
	for w := WhyPolicy; w < whyEnd; w++ {
		list = append(list, w)
	}
	return list
}
