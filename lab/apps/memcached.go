package apps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"
)

// memcachedHead is the length of the header of every datagram of memcached's UDP protocol (doc/protocol.txt, "UDP
// protocol"): request id, number of the datagram within the answer, number of datagrams of the answer, reserved; 16
// bits each, big-endian.
const memcachedHead = 8

// memcachedAnswers bounds the datagrams of an answer.
const memcachedAnswers = 256

var errMemcached = errors.New("no answer of memcached")

// memcached stores values on a memcached server and gets them back, over UDP.
func memcached(args []string, p *printer) error {
	var to string
	var count, size int
	var limit time.Duration
	fs := flag.NewFlagSet("memcached", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the server")
	fs.IntVar(&count, "count", 1, "values")
	fs.IntVar(&size, "size", 100, "bytes of a value")
	fs.DurationVar(&limit, "limit", 5*time.Second, "give up waiting for an answer after it")
	if err := fs.Parse(args); err != nil || count < 1 || size < 0 || size > 60000 {
		return errUsage
	}
	e := Event{Event: "result", Mode: "memcached", Remote: to}
	conn, err := net.Dial("udp", to)
	if err == nil {
		e.Local = addrText(conn.LocalAddr())
		c := &memcachedClient{conn: conn.(*net.UDPConn), limit: limit, buf: make([]byte, 1<<16)}
		for i := 0; i < count && err == nil; i++ {
			err = c.roundTrip(&e, i, size)
		}
		_ = conn.Close()
	}
	if err != nil {
		e = e.outcome(err)
	}
	p.print(e)
	if err != nil {
		return errFailed
	}
	return nil
}

type memcachedClient struct {
	conn  *net.UDPConn
	limit time.Duration
	id    uint16
	buf   []byte
}

// roundTrip stores value number i and gets it back.
func (c *memcachedClient) roundTrip(e *Event, i, size int) error {
	value := make([]byte, size)
	stream{uint64(i)}.fill(value, 0)
	answer, err := c.ask(fmt.Appendf(nil, "set key%d 0 0 %d\r\n%s\r\n", i, size, value))
	if err != nil {
		return err
	}
	if string(answer) != "STORED\r\n" {
		return fmt.Errorf("set: %q: %w", answer[:min(len(answer), 64)], errMemcached)
	}
	answer, err = c.ask(fmt.Appendf(nil, "get key%d\r\n", i))
	if err != nil {
		return err
	}
	if want := fmt.Appendf(nil, "VALUE key%d 0 %d\r\n%s\r\nEND\r\n", i, size, value); !bytes.Equal(want, answer) {
		return fmt.Errorf("get: %d bytes instead of %d: %q: %w", len(answer), len(want), answer[:min(len(answer), 64)], errMemcached)
	}
	e.OK++
	e.Sent += int64(size)
	e.Received += int64(size)
	return nil
}

// ask sends a request and collects the datagrams of its answer, in any order.
func (c *memcachedClient) ask(request []byte) ([]byte, error) {
	c.id++
	head := binary.BigEndian.AppendUint16(nil, c.id)
	head = append(head, 0, 0, 0, 1, 0, 0)
	if _, err := c.conn.Write(append(head, request...)); err != nil {
		return nil, err
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(c.limit))
	var parts [memcachedAnswers][]byte
	for missing := -1; missing != 0; {
		n, err := c.conn.Read(c.buf)
		if err != nil {
			return nil, err
		}
		part, err := parseMemcached(c.buf[:n])
		switch {
		case err != nil:
			return nil, err
		case part.id != c.id:
			continue // the answer to an earlier request
		case missing < 0:
			missing = part.total
		}
		if parts[part.number] == nil {
			parts[part.number] = bytes.Clone(part.text)
			missing--
		}
	}
	return bytes.Join(parts[:], nil), nil
}

// memcachedPart is one datagram of an answer.
type memcachedPart struct {
	id            uint16
	number, total int
	text          []byte
}

func parseMemcached(b []byte) (memcachedPart, error) {
	if len(b) < memcachedHead {
		return memcachedPart{}, fmt.Errorf("%d bytes: %w", len(b), errMemcached)
	}
	p := memcachedPart{
		id: binary.BigEndian.Uint16(b), number: int(binary.BigEndian.Uint16(b[2:])),
		total: int(binary.BigEndian.Uint16(b[4:])), text: b[memcachedHead:],
	}
	if p.number >= p.total || p.total > memcachedAnswers {
		return memcachedPart{}, fmt.Errorf("datagram %d of %d: %w", p.number, p.total, errMemcached)
	}
	return p, nil
}
