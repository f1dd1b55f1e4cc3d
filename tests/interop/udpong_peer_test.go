package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// udpongPort is the port of the program.
const udpongPort = 7174

// Operations of udpong (librdmacm/examples/udpong.c).
const (
	udpongLogin = iota
	udpongStart
	udpongData
	udpongEcho
	udpongEnd
)

// A message of udpong's private protocol has an operation, the client's number as told by the server, a sequence
// number by which the client recognizes the answer, 0, and a 4-byte number, big endian. Logins, starts and ends are
// udpongControl bytes long. All but data are answered; the answer to an end says how much data arrived and how many
// echoes were sent since the start.
const (
	udpongHeader  = 8
	udpongControl = 16
	udpongMax     = udpongHeader + 2048
)

// udpongServer is our end when programs connect.
type udpongServer struct {
	counts map[string]map[byte]uint32 // of data and echoes, by address and client
	logins int
	bad    error // the first wrong message
}

// serve answers until the socket's deadline.
func (u *udpongServer) serve(conn net.PacketConn) error {
	u.counts = map[string]map[byte]uint32{}
	buf := make([]byte, udpongMax)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return u.bad
		}
		if err != nil {
			return err
		}
		if u.process(buf[:n], from.String()) {
			if _, err := conn.WriteTo(buf[:n], from); err != nil {
				return fmt.Errorf("answer to %v: %w", from, err)
			}
		}
	}
}

// process turns a message into its answer, if it gets one. What follows the header is zero in everything that the
// program sends.
func (u *udpongServer) process(m []byte, from string) (answer bool) {
	if len(m) < udpongControl || bytes.Count(m[udpongHeader:], []byte{0}) != len(m)-udpongHeader {
		u.bad = errors.Join(u.bad, fmt.Errorf("%d bytes from %s: %x", len(m), from, m[:min(len(m), 32)]))
		return false
	}
	if u.counts[from] == nil {
		u.counts[from] = map[byte]uint32{}
	}
	switch op, id := m[0], m[1]; op {
	case udpongLogin:
		m[1] = byte(u.logins)
		u.logins++
		u.counts[from][m[1]] = 0
	case udpongStart:
		u.counts[from][id] = 0
	case udpongEcho:
		u.counts[from][id]++
	case udpongEnd:
		binary.BigEndian.PutUint32(m[4:], u.counts[from][id])
	default:
		u.counts[from][id]++
		return false
	}
	return true
}

// udpongClient is our end when a program serves.
type udpongClient struct {
	conn net.PacketConn
	to   net.Addr
	id   byte
	seq  byte

	again int // how often a message was retransmitted
}

// udpongPatience is how long to wait for an answer before the message is sent again; a loss is not an error.
const udpongPatience = 500 * time.Millisecond

// ask sends a message until its answer arrives, and returns the answer.
func (u *udpongClient) ask(op byte, payload []byte) ([]byte, error) {
	m := append([]byte{op, u.id, u.seq, 0, 0, 0, 0, 0}, payload...)
	answer := make([]byte, udpongMax)
	for range 40 {
		if _, err := u.conn.WriteTo(m, u.to); err != nil {
			return nil, err
		}
		if err := u.conn.SetReadDeadline(time.Now().Add(udpongPatience)); err != nil {
			return nil, err
		}
		for {
			n, from, err := u.conn.ReadFrom(answer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				u.again++
				break
			}
			if err != nil {
				return nil, err
			}
			if n < udpongHeader || from.String() != u.to.String() {
				return nil, fmt.Errorf("%d bytes from %v", n, from)
			}
			if answer[2] != u.seq {
				continue // the answer to an earlier transmission
			}
			if answer[0] != op || !bytes.Equal(answer[udpongHeader:n], payload) {
				return nil, fmt.Errorf("answer %x to %x", answer[:min(n, 32)], m[:min(len(m), 32)])
			}
			u.seq++
			return answer[:n], nil
		}
	}
	return nil, fmt.Errorf("no answer to operation %d: %w", op, os.ErrDeadlineExceeded)
}

func (u *udpongClient) login() error {
	answer, err := u.ask(udpongLogin, make([]byte, udpongControl-udpongHeader))
	if err == nil {
		u.id = answer[1]
	}
	return err
}

// play sends messages of a size that the server sends back, or data that it counts, and returns the number that it
// reports.
func (u *udpongClient) play(op byte, size, count int) (uint32, error) {
	control := make([]byte, udpongControl-udpongHeader)
	if _, err := u.ask(udpongStart, control); err != nil {
		return 0, err
	}
	for i := range count {
		payload := counting[i%256:][:size-udpongHeader]
		var err error
		if op == udpongEcho {
			_, err = u.ask(op, payload)
		} else {
			_, err = u.conn.WriteTo(append([]byte{op, u.id, u.seq, 0, 0, 0, 0, 0}, payload...), u.to)
		}
		if err != nil {
			return 0, fmt.Errorf("message %d of %d bytes: %w", i, size, err)
		}
	}
	answer, err := u.ask(udpongEnd, control)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(answer[4:]), nil
}
