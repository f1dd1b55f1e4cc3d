package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// rcopyPort is the port of the program.
const rcopyPort = 7427

// Commands of rcopy. An answer also has the highest bit set.
const (
	rcopyOpen   = 1
	rcopyClose  = 2
	rcopyWrite  = 3
	rcopyAnswer = 0x80
)

// rcopyHeader is the size of the header of each message of rcopy's private protocol (librdmacm/examples/rcopy.c), in
// the machine's byte order: version (0), command, length of the message, 4 bytes of data (the file's mode, or the
// status of an answer), 8 unused bytes. In an open the name follows; in a write the size (8 bytes) and then the file.
const rcopyHeader = 16

func appendRcopy(b []byte, command byte, length int, data uint32) []byte {
	b = binary.NativeEndian.AppendUint16(append(b, 0, command), uint16(length))
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint32(b, data), 0)
}

func readRcopy(r io.Reader) (command byte, rest []byte, data uint32, err error) {
	var h [rcopyHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, 0, err
	}
	n := int(binary.NativeEndian.Uint16(h[2:]))
	if h[0] != 0 || n < rcopyHeader {
		return 0, nil, 0, fmt.Errorf("message %x", h)
	}
	rest = make([]byte, n-rcopyHeader)
	_, err = io.ReadFull(r, rest)
	return h[1], rest, binary.NativeEndian.Uint32(h[4:]), err
}

// rcopyServe writes a file from the program to w until the program ends, and returns the name that the file is to have.
func rcopyServe(conn net.Conn, w io.Writer) (name string, err error) {
	for {
		command, rest, _, err := readRcopy(conn)
		if errors.Is(err, io.EOF) {
			return name, nil
		}
		if err != nil {
			return name, err
		}
		switch command {
		case rcopyOpen:
			name = strings.TrimRight(string(rest), "\x00")
		case rcopyWrite:
			if _, err := io.CopyN(w, conn, int64(binary.NativeEndian.Uint64(rest))); err != nil {
				return name, err
			}
		case rcopyClose:
		default:
			return name, fmt.Errorf("command %d", command)
		}
		if _, err := conn.Write(appendRcopy(nil, command|rcopyAnswer, rcopyHeader, 0)); err != nil {
			return name, err
		}
	}
}

// rcopySend sends the program a file of a size.
func rcopySend(conn net.Conn, name string, r io.Reader, size int64) error {
	path := append([]byte(name), make([]byte, 8-len(name)%8)...)
	write := binary.NativeEndian.AppendUint64(appendRcopy(nil, rcopyWrite, rcopyHeader+8, 0), uint64(size))
	for _, step := range []struct {
		command byte
		message []byte
		content io.Reader
	}{
		{rcopyOpen, append(appendRcopy(nil, rcopyOpen, rcopyHeader+len(path), 0o644), path...), nil},
		{rcopyWrite, write, io.LimitReader(r, size)},
		{rcopyClose, appendRcopy(nil, rcopyClose, rcopyHeader, 0), nil},
	} {
		if _, err := conn.Write(step.message); err != nil {
			return err
		}
		if step.content != nil {
			if n, err := io.Copy(conn, step.content); err != nil {
				return fmt.Errorf("after %d bytes: %w", n, err)
			}
		}
		command, _, status, err := readRcopy(conn)
		if err != nil || command != step.command|rcopyAnswer || status != 0 {
			return fmt.Errorf("answer %#x to command %d, status %d: %w", command, step.command, int32(status), err)
		}
	}
	return nil
}
