package memhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// pairs makes connected TCP sockets of this machine's own kernel: a descriptor
// for the gateway's event loop, and the end a bridge works on.
type pairs struct {
	mu       sync.Mutex // one pair at a time
	listener *net.TCPListener
}

// pairTimeout bounds what never waits on a sane machine.
const pairTimeout = 2 * time.Second

func newPairs() (*pairs, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		if l, err = lc.Listen(context.Background(), "tcp", "[::1]:0"); err != nil {
			return nil, fmt.Errorf("loopback socket: %w", err)
		}
	}
	return &pairs{listener: l.(*net.TCPListener)}, nil
}

// pair returns both ends of a new connection. A close of the gateway's end
// resets it until it is told otherwise (gateway.AppConn).
func (p *pairs) pair() (gateway, bridge *net.TCPConn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := net.Dialer{Timeout: pairTimeout, KeepAlive: -1}
	c, err := d.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		return nil, nil, fmt.Errorf("loopback socket: %w", err)
	}
	gateway = c.(*net.TCPConn)
	if bridge, err = p.accept(gateway.LocalAddr()); err == nil {
		err = gateway.SetLinger(0)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("loopback socket: %w", err), gateway.Close())
	}
	return gateway, bridge, nil
}

// accept waits for the connection from one address; strangers are sent away.
func (p *pairs) accept(from net.Addr) (*net.TCPConn, error) {
	if err := p.listener.SetDeadline(time.Now().Add(pairTimeout)); err != nil {
		return nil, err
	}
	for {
		c, err := p.listener.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if c.RemoteAddr().String() == from.String() {
			return c, nil
		}
		_ = c.Close()
	}
}

func (p *pairs) close() error { return p.listener.Close() }
