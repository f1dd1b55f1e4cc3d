package ebpf

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// vnetHeaderLen is the length of struct virtio_net_hdr, which precedes each packet read from or written to a TUN with
// IFF_VNET_HDR.
const vnetHeaderLen = 10

// openTUN creates a TUN device in the namespace of the calling thread. The device lives as long as a descriptor of it.
func openTUN(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w (the kernel's module tun; in a container, the device)", err)
	}
	if err := setupTUN(fd, name); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// setupTUN attaches fd to the device name, with virtio headers and offloads.
func setupTUN(fd int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("tun name %s: %w", name, err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("tun %s: %w", name, ErrInUse)
	}
	if err != nil {
		return fmt.Errorf("tun %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6); err != nil {
		return fmt.Errorf("tun offloads: %w", err)
	}
	return nil
}

// maxInject is the longest packet that InjectApp takes: the headers of a SYN.
const maxInject = 128

// InjectApp writes a SYN, or a held probe, to the app TUN. pkt is a raw IP packet of at most 128 bytes without payload;
// InjectApp overwrites our option in it by NOPs and computes its TCP checksum. The state of its flow decides where a
// SYN goes: completing (to the listener), released (to the wire) or returned (to the kernel, as if received). Anything
// else is dropped and counted.
func (d *Datapath) InjectApp(pkt []byte) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	var buf [vnetHeaderLen + maxInject]byte
	if len(pkt) > maxInject {
		return fmt.Errorf("inject: %d bytes, more than %d: %w", len(pkt), maxInject, os.ErrInvalid)
	}
	n := copy(buf[vnetHeaderLen:], pkt)
	if err := bare(buf[vnetHeaderLen : vnetHeaderLen+n]); err != nil {
		return err
	}
	if _, err := unix.Write(d.appTUN, buf[:vnetHeaderLen+n]); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	return nil
}

// bare overwrites our option in a raw IP packet by NOPs, so that kernels and peers get the application's own SYN. It
// also computes the checksum, since the recorded SYN may have left with one that the device was to complete.
func bare(pkt []byte) error {
	if _, err := packet.StripOption(pkt); err != nil {
		return fmt.Errorf("inject: %w: %w", os.ErrInvalid, err)
	}
	if err := packet.SetTCPChecksum(pkt); err != nil {
		return fmt.Errorf("inject: %w: %w", os.ErrInvalid, err)
	}
	return nil
}
