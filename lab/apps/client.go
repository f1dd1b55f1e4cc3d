package apps

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// client is a client app: its flags and streams.
type client struct {
	dialer

	to       netip.AddrPort
	count    int
	parallel int
	size     int
	oneByte  bool
	banner   bool
	quiet    bool
	rst      bool
	limit    time.Duration
	gap      time.Duration
	patience time.Duration
	budget   time.Duration
	order    order

	in  io.Reader
	out *printer
}

// parseClient parses the flags that all clients share. Each client uses what it needs.
func parseClient(name string, args []string) (*client, error) {
	c := &client{}
	var to, bind string
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the server")
	fs.StringVar(&bind, "bind", "", "local address and port")
	fs.BoolVar(&c.mapped, "mapped", false, "IPv4 through an IPv6 socket")
	fs.BoolVar(&c.mptcp, "mptcp", false, "MPTCP socket")
	fs.BoolVar(&c.tfo, "tfo", false, "TCP Fast Open")
	fs.DurationVar(&c.timeout, "timeout", 0, "give up connecting after it")
	fs.DurationVar(&c.limit, "limit", 0, "give up reading or writing after it, counted from the connect")
	fs.DurationVar(&c.gap, "gap", 0, "pause between operations")
	fs.DurationVar(&c.patience, "patience", 5*time.Second, "hold: wait so long for the answer to a ping")
	fs.DurationVar(&c.budget, "budget", 15*time.Second, "visit: begin no connection after it")
	fs.IntVar(&c.count, "count", 1, "number of operations")
	fs.IntVar(&c.parallel, "parallel", 1, "churn, short: connections at a time")
	fs.IntVar(&c.size, "size", 64, "ping, short, hold: bytes of a request; churn: at most, each way")
	fs.BoolVar(&c.oneByte, "onebyte", false, "ping: one write for every byte")
	fs.BoolVar(&c.banner, "banner", false, "ping: the server speaks first")
	fs.BoolVar(&c.quiet, "quiet", false, "hold: no events for connections that stand")
	fs.BoolVar(&c.rst, "rst", false, "close by RST")
	fs.Int64Var(&c.order.up, "up", 0, "transfer: bytes to the server")
	fs.Int64Var(&c.order.down, "down", 0, "transfer: bytes from the server")
	fs.BoolVar(&c.order.late, "late", false, "transfer: the server sends after our FIN")
	fs.Int64Var(&c.order.write, "write", 0, "transfer: size of a write, 0 = random")
	fs.Uint64Var(&c.order.seed, "seed", 1, "seed of the data")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return c, c.resolve(to, bind)
}

func (c *client) resolve(to, bind string) (err error) {
	if c.to, err = parseAddr(to); err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	if bind != "" {
		if c.bind, err = parseAddr(bind); err != nil {
			return fmt.Errorf("-bind: %w", err)
		}
	}
	if c.count < 1 || c.parallel < 1 || c.size < 1 {
		return errors.New("-count, -parallel and -size must be positive")
	}
	return nil
}

// parseAddr unmaps IPv4. Another flag says whether a socket maps it again.
func parseAddr(s string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(s)
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), err
}

// open connects and records the outcome in an event.
func (c *client) open(e *Event) (*net.TCPConn, error) {
	conn, took, err := c.dial(c.to)
	e.Micros = took.Microseconds()
	e.ConnectMicros = e.Micros
	e.Remote = c.to.String()
	if err != nil {
		return nil, err
	}
	e.Local, e.Remote = addrText(conn.LocalAddr()), addrText(conn.RemoteAddr())
	e.Repeated += repeated(conn)
	if c.limit > 0 {
		_ = conn.SetDeadline(time.Now().Add(c.limit))
	}
	return conn, nil
}

// repeated returns how many segments of a connection were retransmitted.
func repeated(conn *net.TCPConn) (n int) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Total_retrans)
		}
	})
	return n
}

func (c *client) finish(conn *net.TCPConn) {
	if c.rst {
		_ = conn.SetLinger(0)
	}
	_ = conn.Close()
}

// outcome counts an operation in an event.
func (e Event) outcome(err error) Event {
	if err == nil {
		e.OK++
		return e
	}
	e.Failed++
	return e.withError(err)
}

// connect opens and closes connections, one after the other, until one fails. The times are those of connect().
func (c *client) connect() Event {
	var e Event
	var took []int64
	for range c.count {
		e = Event{OK: e.OK, Repeated: e.Repeated}
		conn, err := c.open(&e)
		if err == nil {
			time.Sleep(c.gap)
			c.finish(conn)
		}
		if e = e.outcome(err); err != nil {
			return e
		}
		took = append(took, e.Micros)
	}
	slices.Sort(took)
	e.Micros, e.MedianMicros = took[len(took)-1], took[len(took)/2]
	return e
}

// ping exchanges requests with an echo server over one connection.
func (c *client) ping() Event {
	var e Event
	conn, err := c.open(&e)
	if err != nil {
		return e.outcome(err)
	}
	defer c.finish(conn)
	if c.banner {
		if err := expectBanner(conn); err != nil {
			return e.outcome(err)
		}
	}
	var took []time.Duration
	for i := range c.count {
		start := time.Now()
		if err := c.roundTrip(conn, i, &e); err != nil {
			return e.outcome(err)
		}
		took = append(took, time.Since(start))
		e.OK++
		time.Sleep(c.gap)
	}
	return e.durations(took)
}

func (e Event) durations(took []time.Duration) Event {
	slices.Sort(took)
	if n := len(took); n > 0 {
		e.Micros, e.MedianMicros = took[n-1].Microseconds(), took[n/2].Microseconds()
	}
	return e
}

func expectBanner(conn *net.TCPConn) error {
	b := make([]byte, len(Banner))
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("banner: %w", err)
	}
	if string(b) != Banner {
		return fmt.Errorf("banner: %q", b)
	}
	return nil
}

func (c *client) roundTrip(conn *net.TCPConn, i int, e *Event) error {
	s := stream{c.order.seed + uint64(i)}
	req, reply := make([]byte, c.size), make([]byte, c.size)
	s.fill(req, 0)
	written := make(chan error, 1)
	go func() { written <- c.write(conn, req) }()
	n, err := io.ReadFull(conn, reply)
	e.Received += int64(n)
	if err != nil {
		// The writer ends with the same error, at this deadline.
		_ = conn.SetWriteDeadline(time.Now())
		return errors.Join(fmt.Errorf("read: %w", err), <-written)
	}
	if err := <-written; err != nil {
		return err
	}
	e.Sent += int64(len(req))
	if at := s.check(reply, 0); at >= 0 {
		return wrongByteError{int64(at)}
	}
	return nil
}

func (c *client) write(conn *net.TCPConn, req []byte) error {
	step := len(req)
	if c.oneByte {
		step = 1
	}
	for chunk := range slices.Chunk(req, step) {
		if _, err := conn.Write(chunk); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

// transfer moves a stream in each direction over one connection, and checks every byte.
func (c *client) transfer() Event {
	var e Event
	conn, err := c.open(&e)
	if err != nil {
		return e.outcome(err)
	}
	defer c.finish(conn)
	start := time.Now()
	err = clientTransfer(conn, c.order, &e)
	e.Micros = time.Since(start).Microseconds()
	return e.outcome(err)
}

// mostFailures is how many failed operations are described.
const mostFailures = 8

// churn opens many short connections to a transfer server, each with a small transfer of random sizes.
func (c *client) churn() Event {
	var (
		mu    sync.Mutex
		total = Event{Errnos: map[string]int{}}
		took  []time.Duration
		jobs  = make(chan int)
		all   sync.WaitGroup
		begun = time.Now()
	)
	for range c.parallel {
		all.Go(func() {
			for i := range jobs {
				start := time.Now()
				one := c.churnOne(i)
				mu.Lock()
				took = append(took, time.Since(start))
				if total = total.add(one); one.Failed > 0 && len(total.Failures) < mostFailures {
					total.Failures = append(total.Failures, fmt.Sprintf("%s at %v after %v, connected in %d µs, %d repeated, %d sent, %d received: %s",
						one.Local, time.Since(begun).Round(time.Millisecond), time.Since(start).Round(time.Millisecond), one.ConnectMicros, one.Repeated, one.Sent, one.Received, one.Error))
				}
				mu.Unlock()
			}
		})
	}
	for i := range c.count {
		jobs <- i
		time.Sleep(c.gap)
	}
	close(jobs)
	all.Wait()
	return total.durations(took)
}

func (e Event) add(one Event) Event {
	e.OK += one.OK
	e.Failed += one.Failed
	e.Repeated += one.Repeated
	e.Sent += one.Sent
	e.Received += one.Received
	if one.Failed > 0 { // describe the last one
		e.Error, e.Errno, e.Local, e.Remote = one.Error, one.Errno, one.Local, one.Remote
		name := one.Errno
		if name == "" {
			name = one.Error
		}
		e.Errnos[name]++
	}
	return e
}

func (c *client) churnOne(i int) Event {
	rnd := rand.New(rand.NewPCG(c.order.seed, uint64(i)))
	one := *c
	one.order = order{
		seed: rnd.Uint64(), late: rnd.IntN(2) == 0,
		up: rnd.Int64N(int64(c.size) + 1), down: rnd.Int64N(int64(c.size) + 1),
	}
	return one.transfer()
}

// hold opens connections to an echo server and keeps them until its input ends. Lines of the input are commands for all
// connections: ping, fin, rst, close. Whenever a connection ends, for whatever reason, it prints an event immediately.
func (c *client) hold() Event {
	var e Event
	var held []*heldConn
	for i := range c.count {
		one := Event{Event: "connected", ID: i}
		conn, err := c.open(&one)
		if !c.quiet || err != nil {
			c.out.print(one.withError(err))
		}
		if e = e.outcome(err); err == nil {
			h := &heldConn{id: i, conn: conn, c: c, got: make(chan []byte), done: make(chan struct{})}
			held = append(held, h)
			go h.readAll()
		}
	}
	e.Local, e.Remote = "", ""
	c.out.print(Event{Event: "done", Mode: "connect", OK: e.OK, Failed: e.Failed})
	lines := bufio.NewScanner(c.in)
	for lines.Scan() {
		c.out.print(command(held, lines.Text()))
	}
	for _, h := range held {
		c.finish(h.conn)
		<-h.done
	}
	return e
}

func command(held []*heldConn, name string) Event {
	e := Event{Event: "done", Mode: name}
	for i, h := range held {
		e = e.outcome(h.do(name, i))
	}
	return e
}

// heldConn is one connection of hold. Only readAll reads from it.
type heldConn struct {
	id   int
	conn *net.TCPConn
	c    *client
	got  chan []byte
	done chan struct{}
}

func (h *heldConn) readAll() {
	defer close(h.done)
	start := time.Now()
	for {
		buf := make([]byte, 4096)
		n, err := h.conn.Read(buf)
		if n > 0 {
			select {
			case h.got <- buf[:n]:
			case <-time.After(time.Second): // not asked for
			}
		}
		if err != nil {
			e := Event{Event: "ended", ID: h.id, Micros: time.Since(start).Microseconds()}
			h.c.out.print(e.withError(err))
			return
		}
	}
}

func (h *heldConn) do(name string, i int) error {
	switch name {
	case "ping":
		return h.ping(stream{h.c.order.seed + uint64(i)})
	case "fin":
		return h.conn.CloseWrite()
	case "rst":
		reset(h.conn)
		return nil
	case "close":
		return h.conn.Close()
	default:
		return fmt.Errorf("command %q: %w", name, errUsage)
	}
}

func (h *heldConn) ping(s stream) error {
	req := make([]byte, h.c.size)
	s.fill(req, 0)
	if _, err := h.conn.Write(req); err != nil {
		return err
	}
	patience := time.NewTimer(h.c.patience)
	defer patience.Stop()
	for off := int64(0); off < int64(len(req)); {
		select {
		case b := <-h.got:
			if at := s.check(b, off); at >= 0 {
				return wrongByteError{off + int64(at)}
			}
			off += int64(len(b))
		case <-h.done:
			return io.ErrUnexpectedEOF
		case <-patience.C:
			return errors.New("no answer")
		}
	}
	return nil
}
