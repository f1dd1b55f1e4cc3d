package profile

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// errScript says that perf printed something else than it does.
var errScript = errors.New("not the output of perf script")

// maxStack is more frames than perf records.
const maxStack = 1024

// fields are what perf script is told to print, and Parse reads: a line with the
// thread's name and the process, then a line per frame, then an empty one.
//
//	redis-server   4711
//		ffffffff82010ddb tcp_sendmsg ([kernel.kallsyms])
//		          4a1b2c main.run (/usr/bin/program)
const fields = "comm,pid,ip,sym,dso"

// Parse yields the samples in the text that perf script prints. The first
// error is the last thing that it yields; a text that ends within a sample has
// none, since perf ends its output there itself.
func Parse(text string) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		var s Sample
		open, number := false, 0
		for line := range strings.Lines(text) {
			number++
			line = strings.TrimRight(line, "\n\r ")
			var err error
			switch {
			case line == "":
				if open && !yield(s, nil) {
					return
				}
				open = false
				continue
			case open:
				err = s.frame(line)
			default:
				s, err = head(line)
				open = true
			}
			if err != nil {
				yield(Sample{}, fmt.Errorf("line %d: %w", number, err))
				return
			}
		}
		if open {
			yield(s, nil)
		}
	}
}

// head reads the first line of a sample. A thread's name may have spaces.
func head(line string) (s Sample, err error) {
	at := strings.LastIndexByte(line, ' ')
	if at < 0 || line[0] == '\t' {
		return s, fmt.Errorf("%w: no process in %q", errScript, line)
	}
	if s.PID, err = strconv.Atoi(line[at+1:]); err != nil {
		return s, fmt.Errorf("%w: process: %w", errScript, err)
	}
	s.Command = strings.TrimSpace(line[:at])
	return s, nil
}

// gone is after the name of a file that has none any more.
const gone = " (deleted)"

// frame reads a line of a stack. Names of functions may have spaces and
// parentheses, names of objects the latter: the last group is the object.
func (s *Sample) frame(line string) error {
	address, rest, ok := strings.Cut(strings.TrimLeft(line, "\t "), " ")
	if _, err := strconv.ParseUint(address, 16, 64); err != nil || !ok {
		return fmt.Errorf("%w: no address in %q", errScript, line)
	}
	rest = strings.Replace(rest, gone+")", ")", 1)
	at := strings.LastIndex(rest, " (")
	if at < 0 || !strings.HasSuffix(rest, ")") {
		return fmt.Errorf("%w: no object in %q", errScript, line)
	}
	if len(s.Stack) == maxStack {
		return fmt.Errorf("%w: a stack of more than %d", errScript, maxStack)
	}
	s.Stack = append(s.Stack, Frame{Symbol: strings.TrimSpace(rest[:at]), Object: rest[at+2 : len(rest)-1]})
	return nil
}
