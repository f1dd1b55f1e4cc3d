package netstack

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/smcgw/smcgw/netstack/link"
)

// Handler is told about arrivals that the stack cannot decide about. All methods are called on goroutines of the link
// or of gVisor. They must not block and must not call Stack.Close. They may call methods of Conn and of Stack that do
// not wait (Abort, Forget, MarkCarrying, Read, Write, Adopt).
type Handler interface {
	// OfferedSYN reports a steered SYN with an offer, on a tuple without a live connection: the client has begun anew.
	// The stack does not answer it; the owner may give it back to the kernel.
	OfferedSYN(syn SYN)
	// Proved asks whether to serve a connection on a tuple that the stack does not know, whose SYN the steering program
	// has answered. rtt is the time that the client took to answer that SYN-ACK. A late segment of an ended connection
	// may look like such an answer, so the owner compares the ISN with what the program has recorded. If it returns
	// true, Accepted or NotAccepted follows.
	Proved(syn SYN) (rtt time.Duration, ok bool)
	// NotAccepted reports that a proved connection has not begun, because of ErrOverload (a bound of the stack itself),
	// ErrReplaced or net.ErrClosed. SYN.Raw is not set.
	NotAccepted(syn SYN, err error)
	// Accepted hands over a connection whose third ACK has arrived. The owner must end it with Close, Abort or Forget.
	Accepted(c *Conn)
	// SYNACK reports a SYN-ACK on a tuple that the stack does not know; the owner calls Adopt. It may be called again
	// for duplicates until Adopt has been called.
	SYNACK(sa SYNACK)
	// BareSYN reports a SYN without offer on a tuple that is unknown or negotiating. (A carrying, raw or adopted
	// connection gets the SYN itself, and answers with a challenge ACK.)
	BareSYN(syn SYN)
}

// Limits bounds what peers can make the stack hold. Zero means the default.
type Limits struct {
	// Flows bounds adopted plus accepted connections. Default 65536.
	Flows int
	// Dead bounds the table of lingering ended flows; the oldest are evicted. Default 8192.
	Dead int
}

// Config configures a Stack. Link and Handler are required.
type Config struct {
	// Link carries the packets. Only one Stack may use it.
	Link link.Link
	// Handler makes the decisions.
	Handler Handler
	// Logger receives debug records; default: discarded.
	Logger *slog.Logger
	// Limits bounds the tables.
	Limits Limits
	// HandshakeTimeout bounds the local steps until gVisor continues a connection. Default 3 s.
	HandshakeTimeout time.Duration
	// Linger is how long an ended flow still swallows late segments and answers challenge ACKs with an exact reset.
	// Default 5 s.
	Linger time.Duration
	// CloseTimeout ends a closed connection whose peer no longer acknowledges anything. Default 60 s.
	CloseTimeout time.Duration
	// MinRTO is the lower bound of the retransmission timeout. Default 20 ms; gVisor's 200 ms would dominate recovery
	// on a LAN.
	MinRTO time.Duration
	// ReceiveBuffer and SendBuffer are the upper bounds of the auto-tuned buffers. Defaults 8 MiB and 6 MiB.
	ReceiveBuffer, SendBuffer int

	clock tcpip.Clock // set only by tests
}

// withDefaults returns a copy with every zero field set to its default.
func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		c.clock = tcpip.NewStdClock()
	}
	setDefault(&c.Limits.Flows, 65536)
	setDefault(&c.Limits.Dead, 8192)
	setDefault(&c.HandshakeTimeout, 3*time.Second)
	setDefault(&c.Linger, 5*time.Second)
	setDefault(&c.CloseTimeout, time.Minute)
	setDefault(&c.MinRTO, 20*time.Millisecond)
	setDefault(&c.ReceiveBuffer, 8<<20)
	setDefault(&c.SendBuffer, 6<<20)
	return c
}

func setDefault[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

// validate returns all problems of c at once.
func (c Config) validate() error {
	var errs []error
	if c.Link == nil {
		errs = append(errs, errors.New("link: missing"))
	}
	if c.Handler == nil {
		errs = append(errs, errors.New("handler: missing"))
	}
	for name, v := range map[string]int{
		"limits.flows": c.Limits.Flows, "limits.dead": c.Limits.Dead,
		"receive_buffer": c.ReceiveBuffer, "send_buffer": c.SendBuffer,
		"handshake_timeout": int(c.HandshakeTimeout), "linger": int(c.Linger),
		"close_timeout": int(c.CloseTimeout), "min_rto": int(c.MinRTO),
	} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s: negative", name))
		}
	}
	return errors.Join(errs...)
}

// mapError converts gVisor's errors to those that the net package would return, so that errors.Is works. Errors that
// cannot happen here keep their text.
func mapError(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrWouldBlock:
		return ErrWouldBlock
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable, *tcpip.ErrHostDown:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrPortInUse, *tcpip.ErrDuplicateAddress:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrAborted, *tcpip.ErrConnectionAborted, *tcpip.ErrInvalidEndpointState, *tcpip.ErrNotConnected:
		return net.ErrClosed
	default:
		return errors.New(err.String())
	}
}
