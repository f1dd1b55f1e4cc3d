package interop

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// riostreamModes are ways in which the program works.
var riostreamModes = [][]string{nil, {"-T", "a"}, {"-T", "b"}, {"-T", "n"}, {"-i", "0"}, {"-B", "65536"}}

// riostreamSlots is a file that gives connections a slot. A program that serves passes this on to its listener at a
// time when connections may already be arriving.
const riostreamSlots = "/etc/rdma/rsocket/iomap_size"

// TestRiostream has both sides write directly to each other's memory, in parts of all sizes.
func TestRiostream(t *testing.T) { eachKernel(t, riostreams) }

func riostreams(t *testing.T, l *lab) {
	l.run(t, "sh", "-c", "echo 1 >"+riostreamSlots)
	defer func() { l.run(t, "rm", riostreamSlots) }()
	cases := slices.DeleteFunc(rstreamCases(l.paths()), func(c rstreamCase) bool { return c.ahead })
	if !thorough() {
		cases = slices.DeleteFunc(cases, func(c rstreamCase) bool { return c.size&(c.size-1) != 0 })
	}
	for i, c := range l.few(cases) {
		c.mode = riostreamModes[i%len(riostreamModes)]
		t.Run(c.name(), func(t *testing.T) {
			for try := 1; ; try++ {
				early := false
				t.Run(strconv.Itoa(try), func(t *testing.T) { early = c.riostream(t, l, try < riostreamTries) })
				if !early {
					return
				}
			}
		})
	}
}

// riostreamTries is how often a case is repeated if the program looks at a turn before all of it has arrived. It
// waits for the last byte, and assumes that the bytes before it are written. rxe copies a packet with the kernel's
// memcpy: without FSRM, which emulated processors lack, that of Linux 6.12 begins at the end if the low byte of the
// source's address is below that of the destination's.
const riostreamTries = 3

// riostream runs a case. If again is set and the program has looked too early, it returns true, and leaves the
// connection as it is.
func (c *rstreamCase) riostream(t *testing.T, l *lab, again bool) (early bool) {
	args := append([]string{
		"riostream", "-T", "v", "-S", strconv.Itoa(c.size), "-C", strconv.Itoa(c.count), "-I", strconv.Itoa(c.iterations),
	}, c.mode...)
	s := l.stack(t, c.path)
	s.cfg.IOMaps = 1
	conn, program := s.withProgram(rstreamPort, c.serves, args...)
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	r := &riostream{conn: conn, client: c.serves}
	err := r.play(c.rstreamTest)
	if err != nil && again && strings.Contains(program.Output(), "data verification failed") {
		t.Logf("the program looked early: %v\n%s", err, program.Output())
		_ = conn.Close()
		return true
	}
	require.NoError(t, err)
	require.NoError(t, (&rstream{conn: conn}).end())
	ended(t, program)
	s.orderly(1)
	return false
}
