package mirror

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/shared"
)

// Bounds on the sockets that a hub keeps after their programs have closed them.
const (
	mostLingering = 1024
	lingerLook    = 20 * time.Millisecond
	lingerTime    = time.Minute // since the peer's kernel has last acknowledged a byte
)

// lingerer is a socket that its program has closed with bytes still to send. The peer's library may answer the end of
// the stream with a frame. If no process had the socket any more, the kernel would answer the frame with a reset, and
// discard what it has not sent.
type lingerer struct {
	fd    int
	acked uint64
	since time.Time
	stop  func()
}

// linger closes a socket once its FIN is acknowledged; immediately, if it has sent none.
func (h *Hub) linger(fd int) {
	if fd < 0 {
		return
	}
	l := &lingerer{fd: fd, since: h.shard.Now()}
	if len(h.lingering) >= mostLingering {
		shared.CloseSocket(&fd)
		return
	}
	h.lingering[fd] = l
	h.look(l)
}

func (h *Hub) look(l *lingerer) {
	now := h.shard.Now()
	info, err := unix.GetsockoptTCPInfo(l.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil || !finOnItsWay(info.State) {
		h.release(l)
		return
	}
	if info.Bytes_acked != l.acked {
		l.acked, l.since = info.Bytes_acked, now
	}
	if now.Sub(l.since) > lingerTime {
		h.release(l)
		return
	}
	l.stop = h.shard.After(lingerLook, func() { h.look(l) })
}

func finOnItsWay(state uint8) bool {
	return state == unix.BPF_TCP_FIN_WAIT1 || state == unix.BPF_TCP_LAST_ACK || state == unix.BPF_TCP_CLOSING
}

func (h *Hub) release(l *lingerer) {
	if l.stop != nil {
		l.stop()
	}
	delete(h.lingering, l.fd)
	shared.CloseSocket(&l.fd)
}
