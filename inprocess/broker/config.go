package broker

import (
	"log/slog"
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
