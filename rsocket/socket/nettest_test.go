package socket

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/net/nettest"
)

// The behaviour package net promises of connections.
func TestNetConn(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			a, b := d.pair(ConnConfig{})
			return a, b, func() {
				var both sync.WaitGroup
				for _, c := range []*Conn{a, b} {
					both.Go(func() { _ = c.Close() })
				}
				both.Wait()
			}, nil
		})
	})
}
