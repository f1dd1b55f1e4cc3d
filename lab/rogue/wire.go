package rogue

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// mark is the mark on packets of a Wire, which packets of the kernel do not have.
const mark = 0x726f

// Quiet is the nftables ruleset for a host with Wires.
const Quiet = `table ip rogue {
	chain out {
		type filter hook output priority 0;
		tcp flags & rst == rst meta mark != 0x726f drop
	}
}
`

// ErrNative means that the server did not accept the offer.
var ErrNative = errors.New("the offer was not accepted")

const (
	mss        = 1400
	wireTurn   = 20 * time.Millisecond
	resendTime = 300 * time.Millisecond
	closeTime  = 10 * time.Second
)

// Wire is a TCP connection made by hand, whose first segments carry offer and confirm. It retransmits what it sends
// until that is acknowledged. It is safe for concurrent use.
type Wire struct {
	fd            int
	local, remote netip.AddrPort
	nonce         uint16
	done          chan struct{}

	mu       sync.Mutex // guards everything below
	cond     sync.Cond
	iss, una uint32
	unacked  []byte
	resend   time.Time
	rcv      uint32
	echo     uint32
	in       []byte
	accepted bool
	open     bool // the TCP handshake is complete
	err      error
	closed   bool
}

// Dial connects from an address of the host on which within runs functions, and which must have the rules of Quiet.
// Without the accept it fails with ErrNative.
func Dial(within func(func() error) error, local, remote netip.AddrPort, patience time.Duration) (*Wire, error) {
	w := &Wire{
		local: local, remote: remote, nonce: uint16(rand.Uint32()), iss: rand.Uint32(), done: make(chan struct{}),
	}
	w.cond.L = &w.mu
	if err := within(w.listen); err != nil {
		return nil, err
	}
	w.una = w.iss + 1
	go w.run()
	return w, w.connect(patience)
}

func (w *Wire) listen() (err error) {
	if w.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	tv := unix.NsecToTimeval(int64(wireTurn))
	err = errors.Join(
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_MARK, mark),
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20),
		unix.Bind(w.fd, &unix.SockaddrInet4{Addr: w.local.Addr().As4()}),
		unix.Connect(w.fd, &unix.SockaddrInet4{Addr: w.remote.Addr().As4()}),
	)
	if err != nil {
		_ = unix.Close(w.fd)
		return fmt.Errorf("raw socket: %w", err)
	}
	return nil
}

// connect sends the SYN and waits for the SYN-ACK with the accept.
func (w *Wire) connect(patience time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sendLocked(segment{seq: w.iss, flags: packet.FlagSYN, options: synOptions(w.stamp(), w.nonce)})
	w.waitLocked(patience, func() bool { return w.open })
	switch {
	case w.err != nil:
		return w.err
	case !w.open:
		return os.ErrDeadlineExceeded
	case !w.accepted:
		return ErrNative
	}
	return nil
}

func (w *Wire) stamp() uint32 { return uint32(time.Now().UnixMilli()) }

// sendLocked sends a segment. A segment that cannot be sent is lost.
func (w *Wire) sendLocked(s segment) {
	if w.closed {
		return
	}
	_, _ = unix.Write(w.fd, s.bytes(w.local, w.remote))
}

// dataLocked sends n bytes of the unacknowledged data from an offset on. Segments at ISN+1 have the confirm option.
func (w *Wire) dataLocked(at, n int) {
	s := segment{
		seq: w.una + uint32(at), ack: w.rcv, flags: packet.FlagACK, options: timestamps(w.stamp(), w.echo),
		payload: w.unacked[at : at+n],
	}
	if s.seq == w.iss+1 {
		s.options = append(packet.AppendOption(s.options, option(packet.RoleConfirm, w.nonce)), 1, 1)
	}
	if n > 0 {
		s.flags |= packet.FlagPSH
	}
	w.sendLocked(s)
}

func (w *Wire) pushLocked(at int) {
	for ; at < len(w.unacked); at += mss {
		w.dataLocked(at, min(mss, len(w.unacked)-at))
	}
	w.resend = time.Now().Add(resendTime)
}

// Write sends b. It waits only if a megabyte is unacknowledged.
func (w *Wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waitLocked(time.Minute, func() bool { return len(w.unacked) < 1<<20 })
	if w.err != nil {
		return 0, w.err
	}
	at := len(w.unacked)
	w.unacked = append(w.unacked, b...)
	w.pushLocked(at)
	return len(b), nil
}

// Read returns what has arrived, in order. It returns io.EOF after the end of the peer's direction, and ECONNRESET
// after a reset.
func (w *Wire) Read(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waitLocked(30*time.Second, func() bool { return len(w.in) > 0 })
	if len(w.in) == 0 {
		if w.err == nil {
			return 0, os.ErrDeadlineExceeded
		}
		return 0, w.err
	}
	n := copy(b, w.in)
	w.in = w.in[n:]
	return n, nil
}

// AwaitEnd waits until the peer has ended the connection, and returns how.
func (w *Wire) AwaitEnd(patience time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waitLocked(patience, func() bool { return false })
	if w.err == nil {
		return os.ErrDeadlineExceeded
	}
	return w.err
}

// waitLocked waits until ok returns true, the connection ends, or patience is over.
func (w *Wire) waitLocked(patience time.Duration, ok func() bool) {
	deadline := time.Now().Add(patience)
	for !ok() && w.err == nil && time.Now().Before(deadline) {
		w.cond.Wait() // run wakes it every turn
	}
}

// run receives and retransmits.
func (w *Wire) run() {
	defer close(w.done)
	buf := make([]byte, 128<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			n = 0
			time.Sleep(wireTurn) // probably an ICMP error
		}
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return
		}
		if n > 0 {
			if s, ok := split(buf[:n], w.remote, w.local); ok {
				w.receiveLocked(s)
			}
		}
		if w.open && len(w.unacked) > 0 && time.Now().After(w.resend) {
			w.pushLocked(0)
		}
		w.cond.Broadcast()
		w.mu.Unlock()
	}
}

func (w *Wire) receiveLocked(s segment) {
	if ts, ok := s.stamp(); ok {
		w.echo = ts
	}
	switch {
	case s.flags&packet.FlagRST != 0:
		w.endLocked(syscall.ECONNRESET)
	case s.flags&packet.FlagSYN != 0:
		if !w.open {
			o := packet.ParseTCPOptions(s.options).Option
			w.accepted = o.Role == packet.RoleAccept && o.Nonce == w.nonce
			w.open, w.rcv = true, s.seq+1
		}
		w.dataLocked(0, 0)
	default:
		w.acknowledgeLocked(s.ack)
		if s.seq == w.rcv {
			w.in = append(w.in, s.payload...)
			w.rcv += uint32(len(s.payload))
			if s.flags&packet.FlagFIN != 0 {
				w.rcv++
				w.endLocked(io.EOF)
			}
		}
		if len(s.payload) > 0 || s.flags&packet.FlagFIN != 0 {
			at := len(w.unacked)
			w.sendLocked(segment{seq: w.una + uint32(at), ack: w.rcv, flags: packet.FlagACK, options: timestamps(w.stamp(), w.echo)})
		}
	}
}

func (w *Wire) acknowledgeLocked(ack uint32) {
	if n := int(int32(ack - w.una)); n > 0 && n <= len(w.unacked) {
		w.una, w.unacked = ack, w.unacked[n:]
		w.resend = time.Now().Add(resendTime)
	}
}

func (w *Wire) endLocked(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Local returns the address of this side.
func (w *Wire) Local() netip.AddrPort { return w.local }

// Close resets the connection and ends the goroutine. The peer accepts a reset only at its current position in the
// stream, so Close first waits until what was written is acknowledged.
func (w *Wire) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.waitLocked(closeTime, func() bool { return len(w.unacked) == 0 || !w.open })
	w.sendLocked(segment{seq: w.una, ack: w.rcv, flags: packet.FlagRST | packet.FlagACK})
	w.closed = true
	w.endLocked(os.ErrClosed)
	w.cond.Broadcast()
	w.mu.Unlock()
	<-w.done
	return unix.Close(w.fd)
}
