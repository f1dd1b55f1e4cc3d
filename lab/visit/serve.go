package visit

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limit bounds what a server does with one connection.
const limit = time.Minute

// serve answers under a name at some addresses until it is killed:
//
//	serve TAG ADDRESS...
func serve(args []string, out io.Writer) error {
	if len(args) < 2 {
		return errUsage
	}
	failed := make(chan error)
	for _, address := range args[1:] {
		ln, err := listen(address)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "listening on %s\n", ln.Addr())
		go func() { failed <- acceptAll(ln, func(c *net.TCPConn) { answer(c, args[0]) }) }()
	}
	return <-failed
}

func listen(address string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp", address)
}

func acceptAll(ln net.Listener, handle func(*net.TCPConn)) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(limit))
		go func() {
			handle(c.(*net.TCPConn))
			_ = c.Close()
		}()
	}
}

// answer serves one connection. A client that is not served sees its end.
func answer(c *net.TCPConn, tag string) {
	head := make([]byte, requestSize)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	r := parseRequest(head)
	up, err := receive(c, r.seed, r.up)
	if err == nil {
		err = finished(c)
	}
	if err != nil {
		return
	}
	b, err := json.Marshal(Greeting{Tag: tag, Local: plain(c.LocalAddr()), Remote: plain(c.RemoteAddr()), Up: up})
	if err != nil || len(b) > greetingSize {
		return
	}
	if _, err := fmt.Fprintf(c, "%-*s", greetingSize, b); err == nil {
		_ = send(c, ^r.seed, r.down)
	}
}

// hold keeps addresses without ever accepting, as conmon does for the published
// ports of a container:
//
//	hold ADDRESS...
func hold(args []string, out io.Writer) error {
	for _, address := range args {
		ln, err := listen(address)
		if err != nil {
			return err
		}
		defer ln.Close()
		fmt.Fprintf(out, "listening on %s\n", ln.Addr())
	}
	return unix.Pause()
}
