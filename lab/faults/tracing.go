package faults

import (
	"errors"
	"fmt"
	"os"
	"runtime/trace"
	"strconv"
	"strings"
	"sync"

	"github.com/smcgw/smcgw/gateway/faults"
)

var errTracing = errors.New("want PORT:FILE")

// tracing writes a trace of the runtime to a file.
type tracing struct {
	port uint16 // the trace ends when a connection to it carries bytes
	name string

	mu           sync.Mutex // guards everything below
	began, ended bool
	file         *os.File
}

func parseTracing(v string) (*tracing, error) {
	port, file, ok := strings.Cut(v, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || file == "" || err != nil {
		return nil, errors.Join(errTracing, err)
	}
	return &tracing{port: uint16(n), name: file}, nil
}

// at is called when a connection reaches a step.
func (t *tracing) at(step string, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if !t.began {
		t.began, err = true, t.start()
	}
	if step == faults.Carrying && port == t.port && !t.ended {
		t.ended = true
		trace.Stop()
		err = errors.Join(err, t.file.Close())
	}
	if err != nil {
		panic(fmt.Sprintf("%sTRACE: %v", prefix, err))
	}
}

func (t *tracing) start() (err error) {
	if t.file, err = os.Create(t.name); err != nil {
		return err
	}
	return trace.Start(t.file)
}
