package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/due"
)

const (
	hopDevice      = "hop0"
	hopQueueLimit  = 16384 // frames in flight
	hopDefaultHold = 2 * time.Millisecond
	vnetHeaderLen  = 10 // struct virtio_net_hdr, the kernel's default size
	maxFrame       = vnetHeaderLen + 14 + 65535
)

// hop is the part of the middlebox that needs time: a TAP device in the switch to which the tcx program diverts frames,
// and which returns them later or in another order. The kernel's own tool for this, netem, is not available everywhere.
//
// Frames keep their virtio header, so super-packets and incomplete checksums pass through unchanged.
type hop struct {
	ifindex int
	tap     *os.File
	begin   time.Time
	wake    chan struct{}
	stop    chan struct{}
	joined  sync.WaitGroup

	mu     sync.Mutex // guards everything below
	did    BoxStats   // what the hop itself has done
	single single
	boxes  map[[6]byte]Box
	last   map[[6]byte]time.Time  // when the last frame of a host leaves
	luck   map[[6]byte]*rand.Rand // for a host's datagrams
	queue  due.Queue[[]byte]      // by the time since begin
	mirror mirror
	rnd    *rand.Rand
}

func startHop(sw *node, mtu int) (*hop, error) {
	p := &hop{
		begin: time.Now(), wake: make(chan struct{}, 1), stop: make(chan struct{}),
		boxes: map[[6]byte]Box{}, last: map[[6]byte]time.Time{}, luck: map[[6]byte]*rand.Rand{},
		rnd: rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano()))),
	}
	p.single = single{luck: p.rnd, mtu: mtu}
	err := doIn(sw.ns, func() (err error) {
		p.tap, err = openTAP(hopDevice)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := p.bringUp(sw, mtu); err != nil {
		return nil, errors.Join(err, p.tap.Close())
	}
	p.joined.Add(2)
	go p.readLoop()
	go p.writeLoop()
	return p, nil
}

// openTAP creates a TAP device with virtio headers in the caller's namespace.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6|unix.TUN_F_TSO_ECN)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create tap %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (p *hop) bringUp(sw *node, mtu int) error {
	link, err := sw.nl.LinkByName(hopDevice)
	if err != nil {
		return fmt.Errorf("device %s: %w", hopDevice, err)
	}
	p.ifindex = link.Attrs().Index
	// The switch itself sends nothing here.
	if err := sw.sysctl("net.ipv6.conf."+hopDevice+".disable_ipv6", "1"); err != nil {
		return err
	}
	return errors.Join(
		sw.nl.LinkSetMTU(link, mtu),
		sw.nl.LinkSetTxQLen(link, hopQueueLimit),
		setUp(sw.nl, link),
	)
}

func setUp(nl *netlink.Handle, link netlink.Link) error {
	if err := nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("device %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// set changes what happens to the frames of one sender.
func (p *hop) set(sender net.HardwareAddr, b Box) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boxes[[6]byte(sender)] = b
	p.luck[[6]byte(sender)] = rand.New(rand.NewPCG(b.UDP.Seed, uint64(sender[5])))
}

func (p *hop) close() error {
	close(p.stop)
	err := p.tap.Close()
	p.joined.Wait()
	return err
}

func (p *hop) readLoop() {
	defer p.joined.Done()
	buf := make([]byte, maxFrame)
	for {
		n, err := p.tap.Read(buf)
		if err != nil {
			return // closed
		}
		if n < vnetHeaderLen+14 {
			continue
		}
		p.take(append([]byte(nil), buf[:n]...))
	}
}

// take decides what happens to a frame, and queues it.
func (p *hop) take(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sender := [6]byte(frame[vnetHeaderLen+6:])
	b := p.boxes[sender]
	if b.Mirror {
		var grown bool
		if frame, grown = p.mirror.pass(frame); grown {
			p.did.Mirrored++
		}
	}
	if !b.single() || !complete(frame) {
		p.leaveLocked(sender, b, frame)
		return
	}
	for _, f := range p.single.pass(b, frame, &p.did) {
		p.leaveLocked(sender, b, f)
	}
	if len(p.single.join.held) > 0 {
		p.wakeLocked()
	}
}

// leaveLocked queues a frame that the box passes.
func (p *hop) leaveLocked(sender [6]byte, b Box, frame []byte) {
	due := p.dueLocked(sender, b)
	if b.UDP.Port != 0 && isDatagram(frame, b.UDP.Port) {
		p.datagramLocked(sender, b.UDP, frame, due)
		return
	}
	p.queueLocked(frame, due)
}

func (p *hop) wakeLocked() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// counters returns the counts of the hop.
func (p *hop) counters() BoxStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.did
}

// datagramLocked applies d to one datagram.
func (p *hop) datagramLocked(sender [6]byte, d Datagrams, frame []byte, due time.Time) {
	luck := p.luck[sender]
	// Draw all three, so that the fate of later datagrams does not depend on which of them are in use.
	lost, dup, reorder := luck.IntN(1000) < d.Loss, luck.IntN(1000) < d.Dup, luck.IntN(1000) < d.Reorder
	size := len(frame) - vnetHeaderLen - 14 - 28
	if binary.BigEndian.Uint16(frame[vnetHeaderLen+12:]) == unix.ETH_P_IPV6 {
		size -= 20
	}
	switch {
	case d.Larger > 0 && size > d.Larger:
		p.did.Larger++
		return
	case d.Rate > 0 && !p.single.bucket(sender).take(d.Rate, time.Now()):
		p.did.TooFast++
		return
	case lost:
		p.did.Lost++
		return
	}
	if dup {
		p.did.Duplicated++
		p.queueLocked(append([]byte(nil), frame...), due)
	}
	if reorder {
		p.did.Reordered++
		due = due.Add(hopDefaultHold)
	}
	p.queueLocked(frame, due)
}

func (p *hop) queueLocked(frame []byte, leaves time.Time) {
	if p.queue.Len() >= hopQueueLimit {
		p.did.HopDropped++
		return
	}
	p.queue.Push(leaves.Sub(p.begin), frame)
	p.wakeLocked()
}

// dueLocked returns when a frame leaves. Only frames chosen for reordering may leave after a later one.
func (p *hop) dueLocked(sender [6]byte, b Box) time.Time {
	due := time.Now().Add(b.Delay)
	if b.Jitter > 0 {
		due = due.Add(time.Duration(p.rnd.Int64N(int64(b.Jitter))))
	}
	if last := p.last[sender]; due.Before(last) {
		due = last
	}
	if b.Reorder > 0 && p.rnd.IntN(1000) < b.Reorder {
		p.did.Reordered++
		hold := b.ReorderBy
		if hold == 0 {
			hold = hopDefaultHold
		}
		return due.Add(hold)
	}
	p.last[sender] = due
	return due
}

func (p *hop) writeLoop() {
	defer p.joined.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(p.flush())
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.stop:
			return
		}
	}
}

// flush writes every frame that is due, and returns how long until the next one is.
func (p *hop) flush() time.Duration {
	for {
		frame, wait := p.next()
		if frame == nil {
			return wait
		}
		// A frame that the kernel rejects counts as lost.
		_, _ = p.tap.Write(frame)
	}
}

func (p *hop) next() ([]byte, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, frame := range p.single.due(time.Now()) {
		sender := [6]byte(frame[vnetHeaderLen+6:])
		p.leaveLocked(sender, p.boxes[sender], frame)
	}
	at, ok := p.queue.Next()
	if !ok {
		return nil, p.single.wait()
	}
	if wait := at - time.Since(p.begin); wait > 0 {
		return nil, min(wait, p.single.wait())
	}
	return p.queue.Pop(), 0
}
