package remote

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// The request is one frame with a Command. Frames of output follow, and then one with the Exit. A frame is its kind,
// the length of its payload (4 bytes, big endian), and the payload.
const (
	kindCommand byte = 'c'
	kindOutput  byte = 'o'
	kindExit    byte = 'x'
)

// maxFrame bounds a frame.
const maxFrame = 1 << 20

// Command is a program to run.
type Command struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"` // in addition to the server's
}

// Exit tells how a program ended.
type Exit struct {
	Code   int    `json:"code"` // -1 if it was killed or not started
	Reason string `json:"reason,omitempty"`
}

// String returns the exit for messages.
func (e Exit) String() string {
	if e.Reason != "" {
		return e.Reason
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// frameWriter writes whole frames from any goroutine.
type frameWriter struct {
	mu sync.Mutex // one frame at a time
	w  io.Writer
}

func (f *frameWriter) write(kind byte, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(b)))
	_, err := f.w.Write(append(head, b...))
	return err
}

func (f *frameWriter) writeJSON(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.write(kind, b)
}

// Write sends output; large writes become several frames.
func (f *frameWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), maxFrame)]
		if err := f.write(kindOutput, part); err != nil {
			return n, err
		}
		n, b = n+len(part), b[len(part):]
	}
	return n, nil
}

func readFrame(r io.Reader) (kind byte, b []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes", n)
	}
	b = make([]byte, n)
	_, err = io.ReadFull(r, b)
	return head[0], b, err
}
