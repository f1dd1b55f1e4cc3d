package programs

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Listening is what servers say once they do.
const Listening = "listening"

// listeners opens listeners for arguments of the form LEFT=RIGHT, where address
// says which half is the address, and handles every connection.
func listeners(args []string, handle func(c *net.TCPConn, left, right string), address func(left, right string) string) error {
	if len(args) == 0 {
		return flag.ErrHelp
	}
	var all sync.WaitGroup
	for _, arg := range args {
		left, right, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not A=B", arg)
		}
		ln, err := net.Listen("tcp4", address(left, right))
		if err != nil {
			return err
		}
		all.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go handle(c.(*net.TCPConn), left, right)
			}
		})
	}
	fmt.Println(Listening)
	all.Wait()
	return errors.New("a listener failed")
}

// serve runs servers, arguments are MODE=ADDRESS: echo sends back what it
// reads; sink reads to the end and answers with the count.
func serve(args []string) error {
	return listeners(args, func(c *net.TCPConn, mode, _ string) {
		defer c.Close()
		switch mode {
		case "echo":
			echo(c)
		case "sink":
			sink(c)
		}
	}, func(_, address string) string { return address })
}

// echo has a small buffer: a server of many idle connections would have.
func echo(c *net.TCPConn) {
	b := make([]byte, 1024)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

func sink(c *net.TCPConn) {
	b := make([]byte, 1<<20)
	var count uint64
	for {
		n, err := c.Read(b)
		count += uint64(n)
		if errors.Is(err, io.EOF) {
			_, _ = c.Write(binary.BigEndian.AppendUint64(nil, count))
			return
		}
		if err != nil {
			return
		}
	}
}

// splice forwards connections, arguments are ADDRESS=TARGET. The kernel moves
// the bytes: io.Copy between two connections is splice(2).
func splice(args []string) error {
	return listeners(args, forward, func(address, _ string) string { return address })
}

func forward(c *net.TCPConn, _, target string) {
	defer c.Close()
	d, err := net.Dial("tcp4", target)
	if err != nil {
		return
	}
	server := d.(*net.TCPConn)
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(server, c)
		_ = server.CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(c, server)
		_ = c.CloseWrite()
	})
	both.Wait()
}
