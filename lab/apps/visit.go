package apps

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// Server is what a transfer server with a name reports about itself and a connection.
type Server struct {
	Tag    string `json:"tag"`
	Local  string `json:"local"`  // its own address
	Remote string `json:"remote"` // the client's address as the server sees it
}

// visitSize is how many bytes the first two visits and the last one move in each direction; others move few.
const visitSize = 200_000

// visit makes connections to transfer servers with names, one after the other, until the time is over, and reports
// everything that an application can observe of each. With a gateway and without, the same server must answer, see the
// same address, and get every byte.
func (c *client) visit() Event {
	e := Event{Errnos: map[string]int{}}
	end := time.Now().Add(c.budget)
	for i := 0; i < c.count && time.Now().Before(end); i++ {
		one, size := *c, rand.Int64N(2000)
		if i < 2 || i == c.count-1 {
			size = visitSize
		}
		one.order = order{seed: rand.Uint64(), up: size, down: size, late: true}
		v := one.transfer()
		if v.OK > 0 && v.Remote != c.to.String() {
			v.OK, v.Failed, v.Error = 0, 1, "the peer is "+v.Remote
		}
		e = e.add(v)
		if e.Visits = append(e.Visits, v); v.TookTooLong() {
			break
		}
		time.Sleep(c.gap)
	}
	return e
}

// Outcome returns, in words, everything about a visit that must be the same with and without a gateway: no times, and
// no ports chosen by the kernel.
func (e Event) Outcome() string {
	switch {
	case e.Failed > 0 && e.Local == "":
		return "connect: " + cmp.Or(e.Errno, e.Error)
	case e.Failed > 0:
		return "transfer: " + cmp.Or(e.Errno, e.Error, "EOF")
	case e.Server == nil:
		return "a server without a name"
	default:
		return fmt.Sprintf("%s at %s saw %s", e.Server.Tag, e.Server.Local, e.seen())
	}
}

// TookTooLong reports whether the client gave up waiting.
func (e Event) TookTooLong() bool { return e.Errno == "GAVE_UP" || e.Errno == "TIMEOUT" }

// seen returns how the server saw the client: "client" if with its true address and port, or else the address, or that
// only the port differs.
func (e Event) seen() string {
	if e.Server.Remote == e.Local {
		return "client"
	}
	remote, _ := netip.ParseAddrPort(e.Server.Remote)
	local, _ := netip.ParseAddrPort(e.Local)
	if remote.Addr() == local.Addr() {
		return "client by another port"
	}
	return remote.Addr().String()
}
