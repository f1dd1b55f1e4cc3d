package apps

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// udpClient sends numbered datagrams from one socket to one peer, or to several in turn, and waits for each answer.
type udpClient struct {
	to        []netip.AddrPort
	bind      netip.AddrPort
	connected bool
	mapped    bool
	sizes     []int
	count     int
	duration  time.Duration
	input     bool
	gap       time.Duration
	limit     time.Duration
	patient   bool
	segment   int
	burst     int
	anyone    int
	device    string
	seed      uint64

	conn    *net.UDPConn
	ended   chan struct{} // closed with the standard input
	out     *printer
	started time.Time
	last    time.Time // the latest answer
	took    []int64
	buf     []byte
	answer  []byte
}

func parseUDPClient(args []string) (*udpClient, error) {
	c := &udpClient{answer: make([]byte, 1<<16)}
	var to, bind, sizes string
	fs := flag.NewFlagSet("ping-udp", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "addresses and ports of the servers, separated by commas")
	fs.StringVar(&bind, "bind", "", "local address and port")
	fs.BoolVar(&c.connected, "connected", false, "connect the socket to the server")
	fs.BoolVar(&c.mapped, "mapped", false, "IPv4 through an IPv6 socket")
	fs.StringVar(&sizes, "size", "64", "sizes of the datagrams, in turn, separated by commas")
	fs.IntVar(&c.count, "count", 1, "datagrams to send")
	fs.DurationVar(&c.duration, "for", 0, "send for so long, instead of -count")
	fs.BoolVar(&c.input, "input", false, "with -for, end before, with the standard input")
	fs.DurationVar(&c.gap, "gap", 0, "pause between datagrams")
	fs.DurationVar(&c.limit, "limit", 5*time.Second, "wait so long for an answer")
	fs.BoolVar(&c.patient, "patient", false, "go on when an answer does not come")
	fs.IntVar(&c.segment, "segment", 0, "UDP_SEGMENT: the kernel cuts a burst into datagrams of that size")
	fs.IntVar(&c.burst, "burst", 1, "datagrams that -segment sends at once")
	fs.IntVar(&c.anyone, "anyone", 0, "answers of so many hosts to each datagram, whatever their addresses")
	fs.StringVar(&c.device, "device", "", "multicast leaves by this device")
	fs.Uint64Var(&c.seed, "seed", 1, "seed of the datagrams")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.resolve(to, bind, sizes)
}

func (c *udpClient) resolve(to, bind, sizes string) error {
	for s := range strings.SplitSeq(to, ",") {
		a, err := parseAddr(s)
		if err != nil {
			return fmt.Errorf("-to: %w", err)
		}
		c.to = append(c.to, a)
	}
	for s := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 65507 {
			return fmt.Errorf("-size: %q: %w", s, errUsage)
		}
		c.sizes = append(c.sizes, n)
	}
	if bind != "" {
		var err error
		if c.bind, err = parseAddr(bind); err != nil {
			return fmt.Errorf("-bind: %w", err)
		}
	}
	if c.segment > 0 {
		c.sizes = []int{c.segment}
	}
	if c.count < 1 || c.burst < 1 || c.burst > 64 || c.connected && len(c.to) > 1 {
		return fmt.Errorf("-count, -burst or -connected: %w", errUsage)
	}
	return nil
}

// pingUDP is the client of serve-udp.
func pingUDP(args []string, in io.Reader, p *printer) error {
	c, err := parseUDPClient(args)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	c.out, c.ended = p, make(chan struct{})
	if c.input {
		go func() {
			_, _ = io.Copy(io.Discard, in)
			close(c.ended)
		}()
	}
	e := Event{Event: "result", Mode: "ping-udp", Remote: c.to[0].String(), Errnos: map[string]int{}}
	if err := c.open(); err != nil {
		e = e.outcome(err)
	} else {
		defer c.conn.Close()
		e = c.run(e)
	}
	p.print(e)
	if e.Failed > 0 {
		return errFailed
	}
	return nil
}

func (c *udpClient) open() (err error) {
	network := "udp4"
	if c.mapped || !c.to[0].Addr().Is4() {
		network = "udp"
	}
	control := func(_, _ string, raw syscall.RawConn) error {
		var err error
		ctlErr := raw.Control(func(fd uintptr) { err = c.setup(int(fd)) })
		return errors.Join(ctlErr, err)
	}
	if c.connected {
		d := net.Dialer{Control: control}
		if c.bind.IsValid() {
			d.LocalAddr = net.UDPAddrFromAddrPort(c.bind)
		}
		conn, err := d.Dial(network, c.to[0].String())
		if err != nil {
			return err
		}
		c.conn = conn.(*net.UDPConn)
		return nil
	}
	local := ""
	if c.bind.IsValid() {
		local = c.bind.String()
	}
	lc := net.ListenConfig{Control: control}
	conn, err := lc.ListenPacket(context.Background(), network, local)
	if err != nil {
		return err
	}
	c.conn = conn.(*net.UDPConn)
	return nil
}

func (c *udpClient) setup(fd int) error {
	var errs []error
	if c.segment > 0 {
		errs = append(errs, os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, c.segment)))
	}
	if c.device != "" {
		dev, err := net.InterfaceByName(c.device)
		if err != nil {
			return err
		}
		if c.to[0].Addr().Is4() {
			err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(dev.Index)})
		} else {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, dev.Index)
		}
		errs = append(errs, os.NewSyscallError("setsockopt", err))
	}
	return errors.Join(errs...)
}

// run sends until the count is reached, the time is over, or an error occurs.
func (c *udpClient) run(e Event) Event {
	e.Local = addrText(c.conn.LocalAddr())
	c.started = time.Now()
	c.last = c.started
	for i := 0; c.more(i); i++ {
		err := c.once(&e, i)
		switch {
		case err == nil:
			e.OK++
		case c.patient && !errors.Is(err, errAlien) && errnoName(err) != "":
			e.Lost++
			e.Errnos[errnoName(err)]++
			c.out.print(Event{Event: "lost", ID: i, Micros: time.Since(c.started).Microseconds()}.withError(err))
		default:
			e.Errnos[errnoName(err)]++
			return c.times(e.outcome(err))
		}
		time.Sleep(c.gap)
	}
	return c.times(e)
}

// more reports whether to send another datagram.
func (c *udpClient) more(i int) bool {
	select {
	case <-c.ended:
		return false
	default:
	}
	if c.duration > 0 {
		return time.Since(c.started) < c.duration
	}
	return i < c.count
}

func (c *udpClient) times(e Event) Event {
	e.GapMicros = max(e.GapMicros, time.Since(c.last).Microseconds())
	if len(c.took) > 0 {
		slices.Sort(c.took)
		e.Micros, e.MedianMicros = c.took[len(c.took)-1], c.took[len(c.took)/2]
	}
	return e
}

// once sends one datagram, or one burst, and reads its answers.
func (c *udpClient) once(e *Event, i int) error {
	to := c.to[i%len(c.to)]
	size := c.sizes[i%len(c.sizes)]
	first := numbered{seed: c.seed, number: uint64(i * c.burst), size: size}
	c.buf = c.buf[:0]
	for k := range c.burst {
		d := first
		d.number += uint64(k)
		c.buf = d.append(c.buf)
	}
	begun := time.Now()
	if err := c.send(to); err != nil {
		return err
	}
	e.Sent += int64(len(c.buf))
	_ = c.conn.SetReadDeadline(begun.Add(c.limit))
	wanted := max(c.burst, c.anyone)
	for got := 0; got < wanted; {
		n, from, err := c.conn.ReadFromUDPAddrPort(c.answer)
		if err != nil {
			return err
		}
		d, err := parseNumbered(c.answer[:n])
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
		switch {
		case err != nil:
			return fmt.Errorf("from %s: %w", from, err)
		case d.size != size || d.size >= numberedHead && (d.number < first.number || d.number >= first.number+uint64(c.burst)):
			e.Late++
			continue
		case c.anyone == 0 && from != to:
			return fmt.Errorf("answer of %s from %s: %w", to, from, errAlien)
		}
		got++
		e.Received += int64(n)
	}
	now := time.Now()
	e.GapMicros = max(e.GapMicros, now.Sub(c.last).Microseconds())
	c.last = now
	c.took = append(c.took, now.Sub(begun).Microseconds())
	return nil
}

func (c *udpClient) send(to netip.AddrPort) (err error) {
	if c.connected {
		_, err = c.conn.Write(c.buf)
	} else {
		_, err = c.conn.WriteToUDPAddrPort(c.buf, to)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("send to %s: %w", to, err)
	}
	return err
}
