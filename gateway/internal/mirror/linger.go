package mirror

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// Bounds on the sockets that a hub keeps after their programs have closed them.
const (
	mostLingering = 1024
	lingerLook    = 20 * time.Millisecond
	fewLingering  = 64          // of more, each is looked at less often
	lingerTime    = time.Minute // since the peer's kernel has last acknowledged a byte
	unreadTime    = time.Second // likewise, if the peer's program has written what no process will read
	mostFrames    = 256         // bytes of frames that a library may still send; more are its program's
)

// lingerer is a socket that its program has closed with bytes still to send. The peer's library may answer the end of
// the stream with a frame. If no process had the socket any more, the kernel would answer the frame with a reset, and
// discard what it has not sent. It does so, too, for the rest of a frame that a process which was killed has left unread.
type lingerer struct {
	heldUp
	hub      *Hub
	fd       int
	sent     func(all bool) // of a process that was killed: the lingerer sends the FIN
	acked    uint64
	since    time.Time
	stop     func()
	looks    bool // a call is under way
	released bool // and closes the socket when it is back

	// The answers to the calls.
	info   *unix.TCPInfo
	err    error
	all    bool // the peer's kernel has acknowledged everything
	unread int  // bytes that wait to be read
}

var _ loop.Outsider = (*lingerer)(nil)

// linger closes a socket once its FIN is acknowledged; immediately, if it has sent none. calls is its process's. If sent
// is not nil, the process has been killed: linger sends the FIN, unless the socket has nothing else to send or is to be
// reset, and calls sent on the shard with whether the peer's kernel has acknowledged everything. A peer whose program
// writes and does not read would wait for a socket that no process reads: natively the kernel resets it at once.
func (h *Hub) linger(fd int, calls *aside, sent func(all bool)) {
	l := &lingerer{heldUp: heldUp{calls: calls, shard: h.shard}, hub: h, fd: fd, sent: sent, since: h.shard.Now()}
	if h.stopped || len(h.lingering) >= mostLingering {
		h.release(l)
		return
	}
	h.lingering[fd] = l
	h.shard.Outside(l)
}

// Owner implements loop.Work.
func (*lingerer) Owner() loop.Owner { return nil }

func (l *lingerer) Ready() bool {
	l.looks = !l.released
	return l.looks && !l.calls.takes(l, l.shard)
}

func (l *lingerer) Outside() {
	l.look()
	if l.sent == nil || l.err != nil || l.all || l.info.State != unix.BPF_TCP_ESTABLISHED && l.info.State != unix.BPF_TCP_CLOSE_WAIT {
		return
	}
	if o, err := unix.GetsockoptLinger(l.fd, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && (o.Onoff == 0 || o.Linger != 0) {
		_ = unix.Shutdown(l.fd, unix.SHUT_WR)
		l.look()
	}
}

func (l *lingerer) look() {
	if l.info, l.err = unix.GetsockoptTCPInfo(l.fd, unix.IPPROTO_TCP, unix.TCP_INFO); l.err != nil {
		return
	}
	l.unread, _ = unix.IoctlGetInt(l.fd, unix.TIOCINQ)
	l.all = l.info.Unacked == 0 && l.info.Notsent_bytes == 0
	if l.info.State == unix.BPF_TCP_CLOSE {
		failed, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		l.all = err == nil && failed == 0
	}
}

func (l *lingerer) Back() {
	h, now := l.hub, l.hub.shard.Now()
	l.looks = false
	l.returned()
	if l.released {
		shared.CloseSocket(&l.fd)
		return
	}
	if l.err != nil || !finOnItsWay(l.info.State) {
		h.release(l)
		return
	}
	if l.info.Bytes_acked != l.acked {
		l.acked, l.since = l.info.Bytes_acked, now
	}
	writes := l.info.State == unix.BPF_TCP_FIN_WAIT1 && l.unread > mostFrames // the peer has not ended its direction
	if idle := now.Sub(l.since); idle > lingerTime || idle > unreadTime && writes {
		h.release(l)
		return
	}
	l.stop = h.shard.After(pause(len(h.lingering)), func() { h.shard.Outside(l) })
}

// pause returns how long to wait with the next look at a socket, of which there are so many.
func pause(lingering int) time.Duration {
	return lingerLook * time.Duration(max(1, lingering/fewLingering))
}

func finOnItsWay(state uint8) bool {
	return state == unix.BPF_TCP_FIN_WAIT1 || state == unix.BPF_TCP_LAST_ACK || state == unix.BPF_TCP_CLOSING
}

func (h *Hub) release(l *lingerer) {
	if l.stop != nil {
		l.stop()
	}
	delete(h.lingering, l.fd)
	l.released = true
	if l.sent != nil {
		l.sent(l.all)
	}
	if !l.looks {
		shared.CloseSocket(&l.fd)
	}
}
