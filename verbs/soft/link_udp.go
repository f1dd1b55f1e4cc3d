package soft

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// udpLink is the link over the host's UDP sockets. Per address it receives on one socket, bound to the device's port,
// and sends from up to one socket per lane, bound to a random port. All are nonblocking, and the link polls none of
// them; the driver of the device waits for fds.
type udpLink struct {
	log      *slog.Logger
	addrs    []netip.Addr
	within   func(func() error) error
	priority int

	receivers []int         // per address; the fds
	senders   [][lanes]lane // per address

	segment bool // the kernel splits trains (UDP_SEGMENT)
	out     outbox
	probe   *outbox // see doubt
	in      inbox

	reported map[unix.Errno]bool // errors already logged
	portless bool                // it was logged that no socket could be opened
	small    bool                // it was logged that buffers are small
	closed   bool
	counters linkCounters
}

// lane is a socket to send from; port 0 means that it is not open yet.
type lane struct {
	fd   int
	port uint16
}

// linkCounters counts linkStats; the loop updates it once per call.
type linkCounters struct {
	sentPackets, sentBytes, sentCalls             atomic.Uint64
	sendErrors                                    atomic.Uint64
	receivedPackets, receivedBytes, receivedCalls atomic.Uint64
}

// newUDPLink opens the receiving sockets of a vector. The vectors of a device must be opened in order, from 0: the
// kernel numbers the sockets of a port in this order, and steer chooses by number.
func newUDPLink(cfg *Config, vector int) (link, error) {
	l := &udpLink{
		log:      cfg.Logger,
		addrs:    cfg.Addrs,
		within:   cfg.Within,
		priority: cfg.Priority,
		senders:  make([][lanes]lane, len(cfg.Addrs)),
		segment:  !cfg.NoOffload,
		reported: make(map[unix.Errno]bool),
	}
	gro := !cfg.NoOffload
	for _, a := range cfg.Addrs {
		s, err := listenUDP(netip.AddrPortFrom(a, cfg.UDPPort), vector, cfg.Vectors, !cfg.NoOffload)
		if err != nil {
			_ = l.close()
			return nil, fmt.Errorf("udp link of vector %d: %w", vector, err)
		}
		l.receivers = append(l.receivers, s.fd)
		gro = gro && s.gro
		l.segment = l.segment && s.segment
		l.smallBuffer(s.buffer, receiveBuffer, "net.core.rmem_max")
	}
	l.out.init()
	l.in.init(l.receivers, gro)
	return l, nil
}

// smallBuffer logs once what the host should allow; without privileges it allows 208 KiB by default, three full trains.
func (l *udpLink) smallBuffer(have, want int, sysctl string) {
	if have < want && !l.small {
		l.small = true
		l.log.Warn("buffer of a UDP socket is small, expect losses", "bytes", have, "wanted", want, "raise", sysctl)
	}
}

func (l *udpLink) sourcePort(local int, laneOf uint8) uint16 {
	s := &l.senders[local][laneOf%lanes]
	if s.port == 0 && !l.closed {
		var buffer int
		err := l.within(func() (err error) {
			*s, buffer, err = openLane(l.addrs[local], l.priority)
			return err
		})
		if err != nil {
			if !l.portless {
				l.portless = true
				l.log.Warn("no socket to send from", "addr", l.addrs[local], "error", err)
			}
			return 0
		}
		l.smallBuffer(buffer, sendBuffer, "net.core.wmem_max")
	}
	return s.port
}

func (l *udpLink) maxTrain() int {
	if l.segment {
		return maxTrainCount
	}
	return 1
}

func (l *udpLink) fds() []int { return l.receivers }

func (l *udpLink) stats() linkStats {
	c := &l.counters
	return linkStats{
		SentPackets: c.sentPackets.Load(), SentBytes: c.sentBytes.Load(), SentCalls: c.sentCalls.Load(),
		SendErrors:      c.sendErrors.Load(),
		ReceivedPackets: c.receivedPackets.Load(), ReceivedBytes: c.receivedBytes.Load(), ReceivedCalls: c.receivedCalls.Load(),
	}
}

// close may be repeated.
func (l *udpLink) close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	for _, fd := range l.receivers {
		_ = unix.Close(fd)
	}
	for i := range l.senders {
		for j := range l.senders[i] {
			if s := &l.senders[i][j]; s.port != 0 {
				_ = unix.Close(s.fd)
				*s = lane{}
			}
		}
	}
	return nil
}
