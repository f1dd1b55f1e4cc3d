package broker

import (
	"log/slog"
	"time"

	"github.com/smcgw/smcgw/inprocess"
)

// Config says how a broker works. Its zero value selects every connection.
type Config struct {
	Limits     Limits     // 0: the defaults
	Policy     Policy     // nil: everything is selected
	Thresholds Thresholds // of the policy
	Scanner    Scanner    // nil: no program has system calls of its own
	Namer      Namer      // nil: addresses name connections
	Log        *slog.Logger
	// Tell, if there is one, is called for each end when something becomes of it, with the broker's lock held: it waits for
	// nothing and calls no method of the broker.
	Tell func(what Told, of End, why inprocess.Why)
}

// Told is what has become of an end.
type Told uint8

// An end was promoted; has ended, or went back to the kernel for good if there is a reason; may not be promoted now.
const (
	ToldPromoted Told = iota
	ToldEnded
	ToldDenied
)

// Thresholds say when a connection is worth asking for. They reach all processes by their news pages.
type Thresholds struct {
	Calls uint32        // that moved bytes; 32
	Bytes uint64        // or bytes; 64 KiB
	Spin  time.Duration // to look at a ring before sleeping; none
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

// Question is what a policy decides about: one end of a connection and its process.
type Question struct {
	Process Process
	Socket  Socket
	Program func() inprocess.Why // has the program looked at as it is now; inprocess.WhyNone: nothing is against it
}

// Policy selects connections. Select returns inprocess.WhyNone for one that may be promoted. It is called for each
// question, by several goroutines at once, and its caller's client waits for it.
type Policy interface {
	Select(Question) inprocess.Why
}

// Scanner tells whether the program of a process has system calls of its own beside libc's, which could read a
// socket past the library. It is called again for what is asked after a call, so it keeps what it has found. An error
// counts as true.
type Scanner interface {
	RawCalls(pid int) (bool, error)
}
