package socket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/verbs/soft"
)

// openStack opens a software device on the loopback address. Real programs use the default port; here others may have it.
func openStack() (*socket.Stack, func(), error) {
	for port := uint16(14791); ; port++ {
		dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, UDPPort: port})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		stack, err := socket.NewStack(dev, socket.StackConfig{})
		if err != nil {
			return nil, nil, errors.Join(err, dev.Close())
		}
		return stack, func() { _ = stack.Close(); _ = dev.Close() }, nil
	}
}

// A server and a client. Either could as well be a program that uses rdma-core's rsockets.
func Example() {
	stack, closeStack, err := openStack()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeStack()
	lc := socket.ListenConfig{Stack: stack}
	l, err := lc.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()

	d := socket.Dialer{Stack: stack}
	c, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Fprint(c, "hello")
	_ = c.(*socket.Conn).CloseWrite()
	answer, err := io.ReadAll(c)
	fmt.Println(string(answer), err)
	// Output: hello <nil>
}

// The peer's memory is written to at an offset, after everything written before and in front of what follows.
func ExampleConn_WriteAt() {
	stack, closeStack, err := openStack()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeStack()
	cfg := socket.ConnConfig{IOMaps: 1}
	lc := socket.ListenConfig{Stack: stack, Config: cfg}
	l, err := lc.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	result := make(chan string)
	go func() {
		c, err := l.AcceptConn(context.Background())
		if err != nil {
			result <- err.Error()
			return
		}
		defer c.Close()
		m, err := c.MapIO(16, 1000)
		if err != nil {
			result <- err.Error()
			return
		}
		defer m.Close()
		fmt.Fprint(c, ".") // after the announcement
		_, _ = io.ReadFull(c, make([]byte, 1))
		result <- strings.TrimRight(string(m.Bytes()), "\x00")
	}()
	d := socket.Dialer{Stack: stack, Config: cfg}
	c, err := d.Dial(context.Background(), l.Addr().(*net.TCPAddr).AddrPort())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	_, _ = io.ReadFull(c, make([]byte, 1))
	n, err := c.WriteAt([]byte("placed"), 1000)
	fmt.Println(n, err)
	fmt.Fprint(c, ".")
	fmt.Println(<-result)
	// Output:
	// 6 <nil>
	// placed
}
