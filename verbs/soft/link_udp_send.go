package soft

import "golang.org/x/sys/unix"

// Limits of one call. Sending over loopback or veth also runs the receiver's network stack, about 20 µs per full train,
// and the thread cannot be preempted meanwhile: a few trains per call are enough to amortize the call.
const (
	outMessages = 16
	outBytes    = 4 * maxTrainBytes
	outBuffers  = 1024 // buffers of all messages; also what the kernel takes per message (UIO_MAXIOV)
)

// outbox is where a call to the kernel is assembled.
type outbox struct {
	msgs    [outMessages]unix.Mmsghdr
	names   [outMessages][unix.SizeofSockaddrInet6]byte
	control [outMessages][controlSize]byte
	bufs    [outBuffers]unix.Iovec

	n, used, bytes int    // messages; their buffers and bytes
	bounce         []byte // for a train of too many buffers; made when first needed
	bounced        bool   // bounce is in use by a message
}

func (o *outbox) init() {
	for i := range o.msgs {
		o.msgs[i].Hdr.Name = &o.names[i][0]
	}
}

func (o *outbox) reset() {
	clear(o.bufs[:o.used]) // keep nothing alive
	o.n, o.used, o.bytes, o.bounced = 0, 0, 0, false
}

// fits reports whether a train can join the messages that are there.
func (o *outbox) fits(t *train) bool {
	switch {
	case o.n == 0:
		return true
	case o.n == outMessages, o.bytes+t.total > outBytes:
		return false
	case len(t.bufs) > outBuffers:
		return !o.bounced && o.used < outBuffers
	}
	return o.used+len(t.bufs) <= outBuffers
}

// add makes a train, which must fit, the next message.
func (o *outbox) add(t *train) {
	first := o.used
	if len(t.bufs) > outBuffers {
		o.bounced = true
		o.addBuffer(o.gather(t, t.total))
	} else {
		for _, b := range t.bufs {
			o.addBuffer(b)
		}
	}
	o.finish(t, first, t.count > 1)
}

// addHead makes the first datagram of a train the only message of an empty outbox.
func (o *outbox) addHead(t *train) {
	o.addBuffer(o.gather(t, t.size))
	o.finish(t, 0, false)
}

// gather copies the first n bytes of a train into one contiguous buffer.
func (o *outbox) gather(t *train, n int) []byte {
	if o.bounce == nil {
		o.bounce = make([]byte, 0, maxTrainBytes)
	}
	all := o.bounce[:0]
	for _, b := range t.bufs {
		all = append(all, b[:min(len(b), n-len(all))]...)
	}
	return all
}

func (o *outbox) addBuffer(b []byte) {
	if len(b) == 0 {
		return
	}
	v := &o.bufs[o.used]
	v.Base = &b[0]
	v.SetLen(len(b))
	o.used++
}

// finish fills in the header of the message whose buffers begin at first.
func (o *outbox) finish(t *train, first int, segment bool) {
	h := &o.msgs[o.n].Hdr
	h.Namelen = putAddress(&o.names[o.n], t.dst)
	h.Iov = nil
	if o.used > first {
		h.Iov = &o.bufs[first]
	}
	h.SetIovlen(o.used - first)

	c := o.control[o.n][:0]
	if segment {
		c = appendControl(c, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2, uint32(t.size))
	}
	if t.ect {
		if t.dst.Addr().Is4() {
			c = appendControl(c, unix.IPPROTO_IP, unix.IP_TOS, 4, ecnECT0)
		} else {
			c = appendControl(c, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, ecnECT0)
		}
	}
	h.Control = nil
	if len(c) > 0 {
		h.Control = &o.control[o.n][0]
	}
	h.SetControllen(len(c))
	o.n++
	o.bytes += t.total
}

// send sends trains, combining those from the same socket into common calls.
func (l *udpLink) send(trains []train) {
	for i := 0; i < len(trains); {
		first := i
		s := l.senders[trains[i].local][trains[i].lane%lanes]
		for i < len(trains) && trains[i].local == trains[first].local && trains[i].lane == trains[first].lane &&
			s.port != 0 && l.sendable(&trains[i]) && l.out.fits(&trains[i]) {
			l.out.add(&trains[i])
			i++
		}
		if i == first { // no socket, or nothing to be sent
			l.counters.sendErrors.Add(1)
			i++
			continue
		}
		l.flush(s.fd, trains[first:i])
	}
}

// sendable reports whether a train is within what the kernel accepts. It may have been built before maxTrain fell.
func (l *udpLink) sendable(t *train) bool {
	return t.total <= maxTrainBytes && t.count <= l.maxTrain()
}

// flush passes the messages of the outbox, which are these trains, to the kernel. The kernel stops at a message that it
// refuses and reports the error only if that is the first, so the rest is retried from there.
func (l *udpLink) flush(fd int, trains []train) {
	var calls, packets, bytes uint64
	for done := 0; done < len(trains); {
		n, errno := sendmmsg(fd, l.out.msgs[done:l.out.n])
		calls++
		for end := done + n; done < end; done++ {
			packets += uint64(trains[done].count)
			bytes += uint64(trains[done].total)
		}
		if n == 0 {
			l.refused(fd, &trains[done], errno)
			done++
		}
	}
	l.out.reset()
	c := &l.counters
	c.sentCalls.Add(calls)
	c.sentPackets.Add(packets)
	c.sentBytes.Add(bytes)
}

// refused drops a train that the kernel refused; the transport detects that as it does any loss, unless the datagrams
// are too long for the path.
//
// That includes a full send buffer (EAGAIN). Over loopback and veth the send buffer never fills; with a network card it
// takes sendBuffer bytes in flight in one lane, more than a few queue pairs' windows. If it fills nevertheless, the
// network is slower than we are, and a loss is what slows a sender down. Waiting would stop every queue pair of the
// vector, including those on other networks, and the reception of the very acknowledgements that would end the wait;
// keeping the train would need a queue, which is what the buffer already was. Later trains are still tried: one that
// gets through shows the receiver the gap immediately, so that the sender need not wait for a timer.
func (l *udpLink) refused(fd int, t *train, errno unix.Errno) {
	l.counters.sendErrors.Add(1)
	if !l.reported[errno] {
		l.reported[errno] = true
		l.log.Warn("datagrams not sent, later ones of this kind are only counted", "dst", t.dst, "size", t.size,
			"datagrams", t.count, "error", errno)
	}
	t.tooLong = errno == unix.EMSGSIZE
	if l.segment && t.count > 1 && (errno == unix.EINVAL || errno == unix.EIO) {
		l.doubt(fd, t)
	}
}

// doubt finds out whether the kernel refuses a train for being a train: on a path through IPsec, or on a device without
// checksum offload under an older kernel. Those return EINVAL, as older kernels also do for datagrams above the path
// MTU. Sending the first datagram alone, which is valid with identification 0, decides.
func (l *udpLink) doubt(fd int, t *train) {
	if l.probe == nil {
		l.probe = new(outbox)
		l.probe.init()
	}
	l.probe.addHead(t)
	n, errno := sendmmsg(fd, l.probe.msgs[:1])
	t.tooLong = errno == unix.EMSGSIZE
	l.counters.sentCalls.Add(1)
	if n == 1 {
		l.counters.sentPackets.Add(1)
		l.counters.sentBytes.Add(uint64(t.size))
		l.segment = false
		l.log.Warn("kernel refuses trains of datagrams, sending them one by one from now on", "dst", t.dst)
	}
	l.probe.reset()
}
