package socket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/rsocket"
)

// DefaultsDir is where rdma-core looks for its defaults (rsocket(7)).
const DefaultsDir = "/etc/rdma/rsocket"

// Bounds of the queues (RS_QP_MIN_SIZE, RS_QP_MAX_SIZE).
const (
	minQueue = 16
	maxQueue = rsocket.MaxDepth
)

// maxDefault bounds what is read of a file: it holds one number.
const maxDefault = 64

// Defaults are what a connection uses that says nothing else. The zero value means those of this package.
type Defaults struct {
	// PollingTime is how long a blocked operation polls before it sleeps.
	PollingTime time.Duration
	// WakeUpInterval bounds a sleep in rpoll of rdma-core. Nothing here needs it; it is kept for programs that ask for
	// it.
	WakeUpInterval time.Duration
	// Inline is the longest message that is sent from the work request.
	Inline int
	// SendQueue and RecvQueue are the queue sizes; RecvQueue is announced as credits.
	SendQueue, RecvQueue int
	// RecvBuffer and SendBuffer are the rings in bytes.
	RecvBuffer, SendBuffer int
	// IOMaps is the number of direct-placement slots announced.
	IOMaps int
}

// ReadDefaults reads the files of a directory such as [DefaultsDir], each a decimal number, as rdma-core does: what is
// missing stays 0, what is out of range is moved into it. A file that is no number is an error and counts as missing;
// the others are read all the same.
func ReadDefaults(dir string) (Defaults, error) {
	var d Defaults
	var errs []error
	number := func(name string, set func(n int)) {
		n, ok, err := readNumber(filepath.Join(dir, name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		if ok {
			set(n)
		}
	}
	number("polling_time", func(n int) { d.PollingTime = durationOf(n, time.Microsecond) })
	number("wake_up_interval", func(n int) { d.WakeUpInterval = durationOf(n, time.Millisecond) })
	number("inline_default", func(n int) { d.Inline = nonzero(min(n, maxQueue)) })
	number("sqsize_default", func(n int) { d.SendQueue = min(max(n, minQueue), maxQueue) })
	number("rqsize_default", func(n int) { d.RecvQueue = min(max(n, minQueue), maxQueue) })
	number("mem_default", func(n int) { d.RecvBuffer = min(max(n, 2), rsocket.MaxRing) })
	number("wmem_default", func(n int) { d.SendBuffer = sendBufferOf(n) })
	number("iomap_size", func(n int) { d.IOMaps = rsocket.IOMapSlots(min(n, maxQueue)) })
	return d, errors.Join(errs...)
}

// nonzero keeps a 0 that was asked for apart from nothing said: negative means none.
func nonzero(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

func durationOf(n int, unit time.Duration) time.Duration {
	return time.Duration(nonzero(min(n, 1e9))) * unit
}

// sendBufferOf: below RS_SNDLOWAT it becomes twice that (rsocket.c rs_configure).
func sendBufferOf(n int) int {
	const lowWater = 2048
	if n < lowWater {
		return 2 * lowWater
	}
	return min(n, rsocket.MaxRing)
}

// readNumber reads the number a file begins with, false if there is no such file.
func readNumber(name string) (n int, ok bool, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDefault))
	if err != nil {
		return 0, false, err
	}
	n, err = parseNumber(b)
	return n, err == nil, err
}

// errNumber is a file of defaults without a number.
var errNumber = errors.New("not a number")

// parseNumber parses leading decimal digits, as scanf does; what follows them is ignored. Numbers beyond 31 bits are the
// largest.
func parseNumber(b []byte) (int, error) {
	b = bytes.TrimLeft(b, " \t\r\n\v\f")
	end := 0
	for end < len(b) && b[end] >= '0' && b[end] <= '9' {
		end++
	}
	if end == 0 {
		return 0, fmt.Errorf("%q: %w", b, errNumber)
	}
	n, err := strconv.ParseUint(string(b[:end]), 10, 31)
	if err != nil {
		return 1<<31 - 1, nil
	}
	return int(n), nil
}
