package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// addrAnswer is the answer to rdmacm.QueryAddr: the addresses and device of an identifier. Before its address is
// resolved there is no device.
type addrAnswer struct {
	nodeGUID uint64
	port     uint8  // 0: no device yet
	pkey     uint16 // of an IPoIB interface; 0 on Ethernet
	src, dst netip.AddrPort
}

// parse parses the answer.
func (a *addrAnswer) parse(b []byte) error {
	if len(b) < rdmacm.AddrAnswerSize {
		return fmt.Errorf("addresses of %d bytes: %w", len(b), rdmacm.ErrMalformed)
	}
	*a = addrAnswer{nodeGUID: binary.BigEndian.Uint64(b), port: b[8], pkey: binary.BigEndian.Uint16(b[10:])}
	var err error
	if a.src, err = parseSockaddr(b[16:]); err != nil {
		return err
	}
	a.dst, err = parseSockaddr(b[16+rdmacm.SockaddrSize:])
	return err
}

// parseGIDs parses the answer to rdmacm.QueryGID: the GIDs of both ends.
func parseGIDs(b []byte) (src, dst verbs.GID, err error) {
	if len(b) < rdmacm.AddrAnswerSize {
		return src, dst, fmt.Errorf("gids of %d bytes: %w", len(b), rdmacm.ErrMalformed)
	}
	if src, err = parseSockaddrIB(b[16:]); err != nil {
		return src, dst, err
	}
	dst, err = parseSockaddrIB(b[16+rdmacm.SockaddrSize:])
	return src, dst, err
}

// An address of InfiniBand (struct sockaddr_ib).
const (
	sockaddrIBLen = 48
	familyIB      = 27 // AF_IB
)

// parseSockaddr parses a sockaddr_storage with an IP address. Without an address the result is the zero value.
func parseSockaddr(b []byte) (netip.AddrPort, error) {
	if len(b) < rdmacm.SockaddrSize {
		return netip.AddrPort{}, fmt.Errorf("address of %d bytes: %w", len(b), rdmacm.ErrMalformed)
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch family := native.Uint16(b); family {
	case 0:
		return netip.AddrPort{}, nil
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), nil
	case syscall.AF_INET6:
		ip := netip.AddrFrom16([16]byte(b[8:])).Unmap()
		if scope := native.Uint32(b[24:]); scope != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(ip, port), nil
	default:
		return netip.AddrPort{}, fmt.Errorf("address of family %d: %w", family, rdmacm.ErrMalformed)
	}
}

// parseSockaddrIB parses the GID of a sockaddr_storage with an InfiniBand address.
func parseSockaddrIB(b []byte) (verbs.GID, error) {
	if len(b) < sockaddrIBLen {
		return verbs.GID{}, fmt.Errorf("ib address of %d bytes: %w", len(b), rdmacm.ErrMalformed)
	}
	if family := native.Uint16(b); family != familyIB {
		return verbs.GID{}, fmt.Errorf("ib address of family %d: %w", family, rdmacm.ErrMalformed)
	}
	return verbs.GID(b[8:24]), nil
}
