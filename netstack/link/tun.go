package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// virtio_net_hdr (linux/virtio_net.h) as a TUN with IFF_VNET_HDR exchanges it: flags, gso_type, hdr_len, gso_size,
// csum_start, csum_offset in host byte order.
const (
	vnetLen = 10

	vnetNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	vnetDataValid = 2 // VIRTIO_NET_HDR_F_DATA_VALID
	vnetGSOTCPv4  = 1
	vnetGSOTCPv6  = 4

	minMTU = 552 // Linux's net.ipv4.route.min_pmtu

	// tunGSOMax leaves room for headers below 64 KiB (gvisor#9816).
	tunGSOMax = 65280
)

// Polled is a link without a goroutine. Its user must call Receive to deliver what has come.
type Polled interface {
	Link
	// FD returns the descriptor whose edges tell when something has come. Its owner keeps owning it, and closes it
	// after the Stack.
	FD() int
	// Receive delivers waiting packets on the caller's goroutine; calls must not overlap. It handles a bounded number
	// of packets and bytes, and reports whether there may be more. An error means that the device is down or gone, and
	// should be tried again after a while. After the end of the Stack it delivers nothing.
	Receive() (more bool, err error)
}

// tunLink is a TUN with vnet headers and offloads. It has five to twenty times the throughput of gVisor's own fdbased
// endpoint on a TUN.
type tunLink struct {
	bareLink
	fd int

	mu sync.Mutex // held by Receive; guards everything below
	in *ladder    // nil once detached
}

// TUN returns a link on a TUN that was opened with IFF_NO_PI and IFF_VNET_HDR (10 byte header), TUN_F_CSUM, TUN_F_TSO4
// and TUN_F_TSO6, and set non-blocking. The caller keeps owning the descriptor, and closes it after the Stack. mtu is
// the MTU of the wire behind the TUN, not that of the TUN.
func TUN(fd, mtu int) (Polled, error) {
	if mtu < minMTU || mtu > 65535 {
		return nil, fmt.Errorf("tun: mtu %d out of range", mtu)
	}
	t := &tunLink{fd: fd, in: newLadder()}
	t.mtu = uint32(mtu)
	return t, nil
}

func (t *tunLink) Endpoint() Endpoint               { return t }
func (t *tunLink) FD() int                          { return t.fd }
func (t *tunLink) GSOMaxSize() uint32               { return tunGSOMax }
func (t *tunLink) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// Detach makes Receive deliver nothing and leave the descriptor alone.
func (t *tunLink) Detach() {
	t.bareLink.Detach()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in != nil {
		t.in.release()
		t.in = nil
	}
}

// WritePackets writes each packet, or super-packet, with one writev.
func (t *tunLink) WritePackets(l stack.PacketBufferList) (int, tcpip.Error) {
	for _, p := range l.AsSlice() {
		if !t.write(p) {
			t.dropped.Add(1)
		}
	}
	return l.Len(), nil
}

// slicesMost bounds the slices of one writev. Each write of an application is a slice of the segment into which gVisor
// merges many. The kernel refuses more than 1024 slices with EINVAL, and would do so at every retransmission.
const slicesMost = 64

func (t *tunLink) write(p *stack.PacketBuffer) bool {
	h := vnetHeader(p)
	views, off := p.AsViewList()
	if views.Len() > slicesMost {
		flat := flatten(views, off, p.Size())
		defer flat.Release()
		return t.writev([][]byte{h[:], flat.AsSlice()})
	}
	var room [1 + slicesMost][]byte
	iov := append(room[:0], h[:])
	for b := range slices(views, off) {
		iov = append(iov, b)
	}
	return t.writev(iov)
}

// slices yields the contents of views, without the first off bytes.
func slices(views buffer.ViewList, off int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for v := views.Front(); v != nil; v = v.Next() {
			b := v.AsSlice()
			n := min(off, len(b))
			if off -= n; n < len(b) && !yield(b[n:]) {
				return
			}
		}
	}
}

// flatten copies size bytes of views, after the first off, into a view of gVisor's pool, which the caller releases.
func flatten(views buffer.ViewList, off, size int) *buffer.View {
	flat := buffer.NewView(size)
	for b := range slices(views, off) {
		_, _ = flat.Write(b) // grows if size was too small
	}
	return flat
}

func (t *tunLink) writev(iov [][]byte) bool {
	for range 3 {
		_, err := unix.Writev(t.fd, iov)
		switch {
		case err == nil:
			return true
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLOUT}}, 10)
		case errors.Is(err, unix.EINVAL):
			t.refused.Add(1)
			return false
		default:
			return false
		}
	}
	return false
}

// vnetHeader returns the header that says what the kernel must still do with p.
func vnetHeader(p *stack.PacketBuffer) (h [vnetLen]byte) {
	g := p.GSOOptions
	if !Offloaded(p) {
		return h
	}
	h[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(h[6:], g.L3HdrLen)
	binary.NativeEndian.PutUint16(h[8:], g.CsumOffset)
	if g.MSS == 0 || p.Data().Size() <= int(g.MSS) {
		return h
	}
	h[1] = vnetGSOTCPv4
	if g.Type == stack.GSOTCPv6 {
		h[1] = vnetGSOTCPv6
	}
	binary.NativeEndian.PutUint16(h[2:], uint16(p.HeaderSize()))
	binary.NativeEndian.PutUint16(h[4:], g.MSS)
	return h
}

const (
	// receiveMost bounds the packets of one Receive, receiveBytes their bytes, and receiveTime, checked every
	// receiveLook packets, their time: a packet takes microseconds, and one that begins a connection tens of them.
	receiveMost  = 32
	receiveBytes = 128 << 10
	receiveTime  = 100 * time.Microsecond
	receiveLook  = 4
)

// Receive implements Polled.
func (t *tunLink) Receive() (more bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.in == nil {
		return false, nil
	}
	var begun time.Time
	for packets, bytes := 0, 0; packets < receiveMost && bytes < receiveBytes; packets++ {
		switch {
		case packets == 0:
			begun = time.Now()
		case packets%receiveLook == 0 && time.Since(begun) > receiveTime:
			return true, nil
		}
		n, err := unix.Readv(t.fd, t.in.iov)
		switch {
		case err == nil:
			t.receive(t.in, n)
			bytes += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		default:
			return false, fmt.Errorf("tun: %w", err)
		}
	}
	return true, nil
}

// receive delivers one packet of n bytes, including the header.
func (t *tunLink) receive(r *ladder, n int) {
	if n <= vnetLen {
		return
	}
	validated := r.hdr[0]&(vnetNeedsCsum|vnetDataValid) != 0
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: r.take(n - vnetLen)})
	defer p.DecRef()
	p.RXChecksumValidated = validated
	first, ok := p.Data().PullUp(1)
	if !ok {
		return
	}
	proto := header.IPv4ProtocolNumber
	if first[0]>>4 == 6 {
		proto = header.IPv6ProtocolNumber
	}
	t.deliver(proto, p)
}

// ladder is a scatter list of increasing sizes: a bare ACK pins 2 KiB rather than 64, and headers are always
// contiguous.
type ladder struct {
	hdr   [vnetLen]byte
	views []*buffer.View
	iov   [][]byte
}

// ladderSizes add up to more than the largest packet.
var ladderSizes = [...]int{2 << 10, 8 << 10, 16 << 10, 16 << 10, 32 << 10}

func newLadder() *ladder {
	r := &ladder{views: make([]*buffer.View, len(ladderSizes)), iov: make([][]byte, len(ladderSizes)+1)}
	r.iov[0] = r.hdr[:]
	for i := range ladderSizes {
		r.refill(i)
	}
	return r
}

func (r *ladder) refill(i int) {
	r.views[i] = buffer.NewViewSize(ladderSizes[i])
	r.iov[i+1] = r.views[i].AsSlice()
}

// take returns the n bytes just read, and replaces the views that hold them.
func (r *ladder) take(n int) (b buffer.Buffer) {
	for i := 0; i < len(r.views) && n > 0; i++ {
		v := r.views[i]
		if n < v.Size() {
			v.CapLength(n)
		}
		n -= v.Size()
		_ = b.Append(v) // fails for a nil view only
		r.refill(i)
	}
	return b
}

func (r *ladder) release() {
	for _, v := range r.views {
		v.Release()
	}
}
