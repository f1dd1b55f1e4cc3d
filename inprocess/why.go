package inprocess

import "fmt"

// Why an end is native, or went back to the kernel. Numbers and names are stable.
type Why uint32

const (
	WhyNone       Why = iota // it is not
	WhyPolicy                // no rule selects it
	WhyOff                   // the mode or the switch
	WhyNoPeer                // the other end never asked
	WhyRawCalls              // the program has system calls of its own
	WhyCounts                // bytes went past the library
	WhyOption                // a socket option or call that the ring cannot serve
	WhyShared                // more than one process has the socket
	WhyPassed                // handed to another program
	WhyPath                  // the path shapes, or is no longer acknowledged
	WhyLimit                 // quota or table full
	WhyMemory                // the system, or the budget, refused memory
	WhyProtocol              // the peer's memory says what cannot be
	WhyRecalled              // the peer asked for it
	WhyDescriptor            // no descriptor for the control socket
	whyEnd
)

// WhyCount is one more than the largest reason.
const WhyCount = int(whyEnd)

var whys = [whyEnd]struct{ name, meaning string }{
	WhyNone:       {"none", "there is no reason against it"},
	WhyPolicy:     {"policy", "no rule selects the connection"},
	WhyOff:        {"off", "the mode or the switch is off"},
	WhyNoPeer:     {"no_peer", "the other end did not ask: it has no library, is on another host or behind a proxy, or has moved too little"},
	WhyRawCalls:   {"raw_calls", "the program has system calls of its own, past libc, that may read a socket"},
	WhyCounts:     {"counts", "bytes went past the library: its counts are not the kernel's"},
	WhyOption:     {"option", "the program uses a socket option or a call that the ring cannot serve"},
	WhyShared:     {"shared", "more than one process has the socket"},
	WhyPassed:     {"passed", "the socket was handed to another program, by exec or by a message"},
	WhyPath:       {"path", "the path shapes traffic, or no longer acknowledges it"},
	WhyLimit:      {"limit", "a quota or a table is full"},
	WhyMemory:     {"memory", "the system refused memory, or the budget of the broker is used up"},
	WhyProtocol:   {"protocol", "the peer's memory said what cannot be"},
	WhyRecalled:   {"recalled", "the peer asked for it"},
	WhyDescriptor: {"descriptor", "the process had no descriptor left for the broker's socket"},
}

// String is the name that users see.
func (w Why) String() string {
	if w < whyEnd {
		return whys[w].name
	}
	return fmt.Sprintf("why %d", uint32(w))
}

// Meaning says it in a sentence, for the documentation.
func (w Why) Meaning() string {
	if w < whyEnd {
		return whys[w].meaning
	}
	return ""
}

// MarshalText is [Why.String].
func (w Why) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// Whys are all reasons but WhyNone.
func Whys() []Why {
	list := make([]Why, 0, whyEnd-1)
	for w := WhyPolicy; w < whyEnd; w++ {
		list = append(list, w)
	}
	return list
}
