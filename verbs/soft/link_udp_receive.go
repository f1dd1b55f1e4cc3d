package soft

import "golang.org/x/sys/unix"

// Messages per call, and their maximum length. If the kernel merges datagrams, a message is up to an IP packet of many
// datagrams; otherwise it is one datagram of a path MTU and headers. The messages of one call should still be in the
// processor's cache when they are checked and copied.
const (
	mergedMessages = 4
	mergedBytes    = 64 << 10
	singleMessages = 32
	singleBytes    = 8 << 10
)

// inbox holds the buffers for received messages. Buffers are touched only as far as they are filled.
type inbox struct {
	msgs    []unix.Mmsghdr
	bufs    []unix.Iovec
	names   [][unix.SizeofSockaddrInet6]byte
	control [][controlSize]byte
	data    []byte
	size    int // size of each message's part of data

	ready []unix.PollFd // the sockets, if there are several
	zero  unix.Timespec
	next  int // index of the socket to read next

	merged int      // recent number of datagrams per message
	d      datagram // being delivered
}

func (in *inbox) init(fds []int, gro bool) {
	n, size := singleMessages, singleBytes
	if gro {
		n, size = mergedMessages, mergedBytes
	}
	in.size, in.merged = size, size/4096 // initial estimate
	in.msgs = make([]unix.Mmsghdr, n)
	in.bufs = make([]unix.Iovec, n)
	in.names = make([][unix.SizeofSockaddrInet6]byte, n)
	in.control = make([][controlSize]byte, n)
	in.data = make([]byte, n*size)
	for i := range in.msgs {
		in.bufs[i].Base = &in.data[i*size]
		in.bufs[i].SetLen(size)
		h := &in.msgs[i].Hdr
		h.Name = &in.names[i][0]
		h.Iov = &in.bufs[i]
		h.SetIovlen(1)
		h.Control = &in.control[i][0]
	}
	if len(fds) > 1 {
		for _, fd := range fds {
			in.ready = append(in.ready, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
}

// arm resets what the kernel wrote into the first n headers.
func (in *inbox) arm(n int) {
	for i := range in.msgs[:n] {
		h := &in.msgs[i].Hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(controlSize)
		h.Flags = 0
	}
}

// receive reads the sockets in turn. If there are several, it first polls which are readable, since most are not.
func (l *udpLink) receive(budget int, to receiver) (more bool) {
	if l.closed || budget <= 0 {
		return false
	}
	in := &l.in
	if in.ready == nil {
		_, more = l.drain(0, budget, to)
		return more
	}
	if pollNow(in.ready, &in.zero) == 0 {
		return false
	}
	n := len(in.ready)
	start := in.next
	for k := range n {
		i := (start + k) % n
		if in.ready[i].Revents == 0 {
			continue
		}
		if budget <= 0 {
			in.next = i
			return true
		}
		used, left := l.drain(i, budget, to)
		budget -= used
		if left {
			in.next = (i + 1) % n
			more = true
		}
	}
	return more
}

// drain delivers about budget datagrams of a socket; fewer messages than requested mean that it is empty.
func (l *udpLink) drain(local, budget int, to receiver) (used int, more bool) {
	in := &l.in
	for used < budget {
		want := min(max((budget-used)/in.merged, 1), len(in.msgs))
		in.arm(want)
		n, errno := recvmmsg(l.receivers[local], in.msgs[:want])
		l.counters.receivedCalls.Add(1)
		if errno != 0 {
			// On any error but EAGAIN, datagrams may remain in the socket.
			return used, errno != unix.EAGAIN
		}
		datagrams := l.hand(local, n, to)
		used += max(datagrams, n)
		in.merged = max(datagrams/n, in.merged/2, 1)
		if n < want {
			return used, false
		}
	}
	return used, true
}

// hand delivers the datagrams of the first n messages and counts them. Truncated messages are not RoCE packets of ours.
func (l *udpLink) hand(local, n int, to receiver) int {
	in := &l.in
	datagrams, bytes := 0, 0
	for i := range in.msgs[:n] {
		h := &in.msgs[i].Hdr
		if h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			continue
		}
		length := int(in.msgs[i].Len)
		bytes += length
		data := in.data[i*in.size : i*in.size+length : i*in.size+length]
		size, ce := parseControl(in.control[i][:h.Controllen])
		in.d = datagram{local: local, src: parseAddress(in.names[i][:h.Namelen]), ce: ce}
		for first := true; first || len(data) > 0; first = false {
			in.d.data = data
			if size > 0 && size < len(data) {
				in.d.data = data[:size:size]
			}
			data = data[len(in.d.data):]
			datagrams++
			to.deliver(&in.d)
		}
	}
	in.d = datagram{}
	l.counters.receivedPackets.Add(uint64(datagrams))
	l.counters.receivedBytes.Add(uint64(bytes))
	return datagrams
}
