package bench

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// execute does the server's part of a work. It always ends: at the end of what the client sends, or when the work's
// time and the grace are over.
func (s *server) execute(c net.Conn, o order) error {
	if err := c.SetDeadline(time.Now().Add(o.time + grace)); err != nil {
		return err
	}
	switch o.work {
	case workUpload:
		return s.upload(c)
	case workDownload:
		return s.download(c, o.time)
	case workEcho:
		return s.echo(c)
	default:
		n, err := c.Write(make([]byte, o.size))
		s.sent.Add(uint64(n))
		return err
	}
}

func (s *server) upload(c net.Conn) error {
	buf := make([]byte, blockSize)
	var total uint64
	for {
		n, err := c.Read(buf)
		total += uint64(n)
		s.received.Add(uint64(n))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := c.Write(binary.BigEndian.AppendUint64(nil, total))
	return err
}

func (s *server) download(c net.Conn, d time.Duration) error {
	buf := make([]byte, blockSize)
	for end := time.Now().Add(d); ; {
		n, err := c.Write(buf) // at least once, however slow this host is
		s.sent.Add(uint64(n))
		if err != nil || !time.Now().Before(end) {
			return err
		}
	}
}

func (s *server) echo(c net.Conn) error {
	buf := make([]byte, blockSize)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			s.received.Add(uint64(n))
			if _, err := c.Write(buf[:n]); err != nil {
				return err
			}
			s.sent.Add(uint64(n))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
