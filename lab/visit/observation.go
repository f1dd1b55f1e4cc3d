package visit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Observation is what a client knows of one connection.
type Observation struct {
	// ConnectMicros is how long connect() took, failed or not.
	ConnectMicros int64 `json:"connect_micros"`
	// Failed is where the connection failed and the name of the error, like
	// "connect: ECONNREFUSED". Impatience is GAVE_UP in connect, TIMEOUT later.
	Failed string `json:"failed,omitempty"`
	// Peer is what getpeername() says, if it is not the address that the client wanted.
	Peer string `json:"peer,omitempty"`
	// Server is what the server has told.
	Server Greeting `json:"server"`
	// Up and Down count the bytes that arrived as they were sent.
	Up   int64 `json:"up"`
	Down int64 `json:"down"`
	// Local is the client's own address.
	Local string `json:"local,omitempty"`
}

// Greeting is what a server tells about itself and a connection.
type Greeting struct {
	Tag    string `json:"tag"`
	Local  string `json:"local"`  // its own address
	Remote string `json:"remote"` // of the client, as it sees it
	Up     int64  `json:"up"`     // bytes that it has got as they were sent
}

// Outcome is everything that must be the same with and without a gateway, in
// words. Ports that the kernel chooses are not in it.
func (o Observation) Outcome() string {
	if o.Failed != "" {
		return o.Failed
	}
	text := fmt.Sprintf("%s at %s saw %s", o.Server.Tag, o.Server.Local, o.seen())
	if o.Peer != "" {
		text += ", peer " + o.Peer
	}
	return text
}

// TookTooLong reports whether the client lost its patience.
func (o Observation) TookTooLong() bool {
	return strings.HasSuffix(o.Failed, ": GAVE_UP") || strings.HasSuffix(o.Failed, ": TIMEOUT")
}

// seen is the client as the server saw it: client if it is the true address and
// port, else the address, with "port kept" if that is so.
func (o Observation) seen() string {
	if o.Server.Remote == o.Local {
		return "client"
	}
	remote, _ := netip.ParseAddrPort(o.Server.Remote)
	local, _ := netip.ParseAddrPort(o.Local)
	if remote.Addr() == local.Addr() {
		return "client by another port"
	}
	return remote.Addr().String()
}

// errnoOf names an error.
func errnoOf(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "TIMEOUT"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "EOF"
	default:
		return err.Error()
	}
}

// plain writes an address, IPv4 as such.
func plain(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()).String()
}
