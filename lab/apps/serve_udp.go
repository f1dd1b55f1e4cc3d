package apps

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Modes of datagram servers:
//
//	echo  sends back what comes, from the address it came to
//	sink  answers nothing
//	join  echo in a multicast group, the address it is bound to
var udpModes = []string{"echo", "sink", "join"}

// udpServer checks and counts what arrives on one socket.
type udpServer struct {
	out    *printer
	mode   string
	conn   *net.UDPConn
	device string

	mu      sync.Mutex // guards everything below
	tallies map[tallyKey]*Event
}

// tallyKey is the source and destination of datagrams, and the device on which they arrived.
type tallyKey struct {
	from, to netip.AddrPort
	device   int
}

// serveUDP runs until it is killed. It reports every new peer, every datagram that no app has sent, and, for each line
// "report" that it reads, what each peer has sent so far.
func serveUDP(args []string, in io.Reader, p *printer) error {
	var device string
	fs := flag.NewFlagSet("serve-udp", flag.ContinueOnError)
	fs.StringVar(&device, "device", "eth0", "device of multicast groups")
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		return errUsage
	}
	var all sync.WaitGroup
	var servers []*udpServer
	for i, arg := range fs.Args() {
		mode, addr, _ := strings.Cut(arg, "=")
		s := &udpServer{out: p, mode: mode, device: device, tallies: map[tallyKey]*Event{}}
		if err := s.listen(addr); err != nil {
			p.print(Event{Event: "result", Mode: mode, Failed: 1}.withError(err))
			return err
		}
		p.print(Event{Event: "listening", Mode: mode, ID: i, Local: addrText(s.conn.LocalAddr())})
		servers = append(servers, s)
		all.Go(s.run)
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if lines.Text() != "report" {
			continue
		}
		for _, s := range servers {
			s.report()
		}
		p.print(Event{Event: "reported"})
	}
	all.Wait()
	return nil
}

func (s *udpServer) listen(addr string) error {
	a, err := netip.ParseAddrPort(addr)
	if err != nil || !slices.Contains(udpModes, s.mode) {
		return fmt.Errorf("%s=%s: %w", s.mode, addr, errUsage)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = s.setup(int(fd), a.Addr()) })
		return errors.Join(ctlErr, err)
	}}
	network := "udp"
	if a.Addr().Is4() {
		network = "udp4"
	}
	conn, err := lc.ListenPacket(context.Background(), network, addr)
	if err != nil {
		return err
	}
	s.conn = conn.(*net.UDPConn)
	return nil
}

// setup makes the kernel report the address and the device of arriving datagrams.
func (s *udpServer) setup(fd int, a netip.Addr) error {
	level, info := unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	if a.Is4() {
		level, info = unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	errs := []error{os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, info, 1))}
	if s.mode == "join" {
		errs = append(errs, s.join(fd, a))
	}
	return errors.Join(errs...)
}

func (s *udpServer) join(fd int, group netip.Addr) error {
	dev, err := net.InterfaceByName(s.device)
	if err != nil {
		return err
	}
	if group.Is4() {
		return os.NewSyscallError("setsockopt", unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(dev.Index)}))
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
		&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(dev.Index)}))
}

// run answers until the socket fails. An unconnected socket does not get errors of single peers (ICMP).
func (s *udpServer) run() {
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	port := s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	for {
		n, m, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			s.out.print(Event{Event: "result", Mode: s.mode, Failed: 1}.withError(err))
			return
		}
		to, device := arrival(oob[:m])
		key := tallyKey{from: from, to: netip.AddrPortFrom(to, port), device: device}
		if !s.count(key, buf[:n]) || s.mode == "sink" {
			continue
		}
		var reply []byte
		if single(to) {
			reply = departure(to, s.conn)
		}
		_, _, _ = s.conn.WriteMsgUDPAddrPort(buf[:n], reply, from)
	}
}

// single reports whether an address is that of one host, in the test networks.
func single(a netip.Addr) bool {
	return a.IsValid() && !a.IsMulticast() && (!a.Is4() || a.As4()[3] != 255)
}

// count counts a datagram, and reports whether an app has sent it.
func (s *udpServer) count(key tallyKey, b []byte) bool {
	_, err := parseNumbered(b)
	s.mu.Lock()
	t, known := s.tallies[key]
	if !known {
		t = &Event{Mode: s.mode, ID: len(s.tallies), Local: plainText(key.to), Remote: plainText(key.from)}
		if dev, err := net.InterfaceByIndex(key.device); err == nil {
			t.Device = dev.Name
		}
		s.tallies[key] = t
	}
	*t = t.outcome(err)
	t.Received += int64(len(b))
	e := *t
	s.mu.Unlock()
	if !known {
		e.Event = "peer"
		s.out.print(e)
	}
	if err != nil {
		e.Event, e.Error = "alien", fmt.Sprintf("%v: %s", err, hex.EncodeToString(b[:min(len(b), 64)]))
		s.out.print(e)
	}
	return err == nil
}

func (s *udpServer) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tallies {
		e := *t
		e.Event = "tally"
		s.out.print(e)
	}
}
