package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// ipoibHeaderLen is the length of the link header: 20 bytes of link address, 2 of protocol, 2
// reserved (RFC 4391, 6; the kernel's IPOIB_HARD_LEN).
const ipoibHeaderLen = 24

// arphrdInfiniband is ARPHRD_INFINIBAND of linux/if_arp.h.
const arphrdInfiniband = 32

// ipoibCable joins two hosts by devices that look like IPoIB devices to programs, on a machine without an InfiniBand
// adapter. The caller must call Close.
//
// A device is a TUN of type ARPHRD_INFINIBAND. The kernel treats what it redirects to it as on IPoIB, since it goes by
// the type (dev_is_mac_header_xmit). The link header of ipoibHeaderLen bytes comes from two small programs, which are
// the first on the device:
//
//	egress   puts it in front of what the host sends, as ipoib_hard_header does
//	ingress  puts one of zeros in front of what arrives, as skb_add_pseudo_hdr does,
//	         but not of what a program redirects there: that has an Ethernet header
//
// The other host's device gets the packets without it.
type ipoibCable struct {
	name  string
	hosts [2]*testnet.Host
	ends  [2]*os.File
	links []link.Link
	done  chan struct{}
}

// joinIPoIB gives both hosts a device with this name, which is down and has no address.
func joinIPoIB(a, b *testnet.Host, name string) (_ *ipoibCable, err error) {
	c := &ipoibCable{name: name, hosts: [2]*testnet.Host{a, b}, done: make(chan struct{}, 2)}
	for i, h := range c.hosts {
		if err := h.Do(func() (err error) { c.ends[i], err = openIPoIB(name); return err }); err != nil {
			return nil, errors.Join(fmt.Errorf("%s of %s: %w", name, h.Name, err), c.closeEnds())
		}
	}
	go c.carry(c.ends[0], c.ends[1])
	go c.carry(c.ends[1], c.ends[0])
	return c, nil
}

// openIPoIB opens a TUN of this type. The kernel computes its checksums, and its segments stay whole.
func openIPoIB(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETLINK, arphrdInfiniband)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tun: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil // the runtime's poller gets no events for a TUN without a device
}

// carry moves packets from one device to the other, without their link header, until a device is closed.
func (c *ipoibCable) carry(from, to *os.File) {
	defer func() { c.done <- struct{}{} }()
	buf := make([]byte, 65536)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		packet := buf[:n]
		if n > ipoibHeaderLen && packet[0]>>4 == 0 { // a TUN's own packets begin with the IP version
			packet = packet[ipoibHeaderLen:]
		}
		_, _ = to.Write(packet) // a device that is down loses what arrives
	}
}

// Show waits for programs on both devices, and attaches those of the link headers in front of them.
func (c *ipoibCable) Show(ctx context.Context) error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "ipoib_header", Type: ebpf.SchedCLS, License: "GPL", Instructions: ipoibHeader()})
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	defer func() { _ = prog.Close() }()
	for _, h := range c.hosts {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if err := h.Do(func() error { return c.show(ctx, prog, at) }); err != nil {
				return fmt.Errorf("%s of %s: %w", c.name, h.Name, err)
			}
		}
	}
	return nil
}

// show is Show for one direction of the device in the calling thread's namespace.
func (c *ipoibCable) show(ctx context.Context, prog *ebpf.Program, at ebpf.AttachType) error {
	dev, err := netlink.LinkByName(c.name)
	if err != nil {
		return err
	}
	index := dev.Attrs().Index
	for {
		there, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			return err
		}
		if len(there.Programs) > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no program came: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: at, Anchor: link.Head()})
	if err == nil {
		c.links = append(c.links, l)
	}
	return err
}

// ipoibHeader returns the program. Packets that a gateway's program has sent on have its tag (redirect.h of its
// programs).
func ipoibHeader() asm.Instructions {
	const tcIndex, tag, next = 44, 0x5300, -1 // __sk_buff.tc_index, TAG_OURS, TCX_NEXT
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, tcIndex, asm.Word),
		asm.And.Imm(asm.R2, 0xff00),
		asm.JEq.Imm(asm.R2, tag, "out"),
		asm.Mov.Imm(asm.R2, ipoibHeaderLen),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnSkbChangeHead.Call(),
		asm.Mov.Imm(asm.R0, next).WithSymbol("out"),
		asm.Return(),
	}
}

// Close removes the devices. No packet moves once it returns.
func (c *ipoibCable) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	errs = append(errs, c.closeEnds())
	for range c.ends {
		<-c.done
	}
	return errors.Join(errs...)
}

func (c *ipoibCable) closeEnds() error {
	var errs []error
	for _, f := range c.ends {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
