package profile

import "strings"

// rule says what a function on a stack means.
type rule struct {
	item Item
	// of is whose time it says it of; nil: that of all roles.
	of func(Role) bool
	// within asks for one of these functions around it; nil asks for nothing.
	within []string
	// functions are those that it is about; nil are all.
	functions []string
}

// rules are asked in this order for each function of a stack, from the
// innermost: the first that knows a function decides. What helps all functions
// (locks, lists, clocks) is in none, and so belongs to its caller.
var rules = []rule{
	{item: Spin, of: Role.gateway, within: []string{spinning}},
	{item: Idle, functions: idling},
	{item: BPF, functions: programsOfKernel},
	{item: Tun, functions: []string{"tun_"}},
	{item: Wakeups, functions: switching},
	{item: DatagramCopy, within: datagrams, functions: copying},
	{item: Copy, functions: copying},
	// What a datagram meets on its way is part of its cost.
	{item: Datagrams, within: datagrams, functions: buffering},
	{item: Datagrams, functions: datagram},
	{item: Sockets, functions: opening},
	{item: Polling, functions: polling},
	{item: Buffers, within: append(transport, network...), functions: buffering},
	{item: TCP, functions: transport},
	{item: Datagrams, within: datagrams, functions: network},
	{item: Network, functions: network},
	{item: Memory, functions: mapping},
	{item: Calls, functions: calling},
	{item: Timers, functions: timing},
	{item: Machine, functions: []string{"kthread$", "ret_from_fork"}},

	{item: Checksum, functions: checksum},
	{item: RingCopy, within: carrying, functions: []string{"runtime.memmove"}},
	{item: Programs, functions: []string{module + "lab/bench/programs"}},
	{item: Device, functions: []string{module + "verbs"}},
	{item: Netstack, of: Role.gateway, functions: []string{"gvisor.dev/", module + "netstack"}},
	{item: Negotiation, of: Role.gateway, functions: negotiating},
	{item: Streams, of: Role.gateway, functions: streaming},
	{item: Collector, of: Role.gateway, functions: collecting},
	{item: Scheduler, of: Role.gateway, functions: scheduling},
}

// Classify says what a stack, innermost function first, means in a process of
// that role.
func Classify(stack []Frame, of Role) Item {
	if of == Others {
		return Machine
	}
	for i := range stack {
		for r := range rules {
			if rules[r].knows(stack[i:], of) {
				return rules[r].item
			}
		}
	}
	switch {
	case of.program():
		return Programs
	case of.gateway():
		return Streams
	}
	return Other
}

// knows tells whether a rule is about the first function of a stack, the rest of
// which called it.
func (r *rule) knows(stack []Frame, of Role) bool {
	if r.of != nil && !r.of(of) || r.functions != nil && !begins(stack[0].Symbol, r.functions) {
		return false
	}
	if r.within == nil {
		return true
	}
	for _, out := range stack[1:] {
		if begins(out.Symbol, r.within) {
			return true
		}
	}
	return false
}

func begins(symbol string, list []string) bool {
	for _, name := range list {
		whole, ok := strings.CutSuffix(name, "$")
		if ok && symbol == whole || !ok && strings.HasPrefix(symbol, name) {
			return true
		}
	}
	return false
}
