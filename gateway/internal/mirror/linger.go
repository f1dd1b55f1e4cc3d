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
)

// lingerer is a socket that its program has closed with bytes still to send. The peer's library may answer the end of
// the stream with a frame. If no process had the socket any more, the kernel would answer the frame with a reset, and
// discard what it has not sent.
type lingerer struct {
	heldUp
	hub      *Hub
	fd       int
	acked    uint64
	since    time.Time
	stop     func()
	looks    bool // a call is under way
	released bool // and closes the socket when it is back

	info *unix.TCPInfo // the answer to the call
	err  error
}

var _ loop.Outsider = (*lingerer)(nil)

// linger closes a socket once its FIN is acknowledged; immediately, if it has sent none. calls is its process's.
func (h *Hub) linger(fd int, calls *aside) {
	if fd < 0 {
		return
	}
	l := &lingerer{heldUp: heldUp{calls: calls, shard: h.shard}, hub: h, fd: fd, since: h.shard.Now()}
	if h.stopped || len(h.lingering) >= mostLingering {
		shared.CloseSocket(&fd)
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
	l.info, l.err = unix.GetsockoptTCPInfo(l.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
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
	if now.Sub(l.since) > lingerTime {
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
	if !l.looks {
		shared.CloseSocket(&l.fd)
	}
}
