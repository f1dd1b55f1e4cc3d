package visit

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
)

// client visits a server some times, one after the other.
type client struct {
	to, bind netip.AddrPort
	count    int
	patience time.Duration
	gap      time.Duration
	size     uint64
	hopeless int
	budget   time.Duration
}

// visit makes connections and prints their observations as one JSON array:
//
//	visit -to ADDRESS [flags]
func visit(args []string, out io.Writer) error {
	var c client
	var to, bind string
	fs := flag.NewFlagSet("visit", flag.ContinueOnError)
	fs.StringVar(&to, "to", "", "address and port of the server")
	fs.StringVar(&bind, "bind", "", "local address and port")
	fs.IntVar(&c.count, "count", 1, "number of connections")
	fs.DurationVar(&c.patience, "patience", 5*time.Second, "give up a connection that takes longer")
	fs.DurationVar(&c.gap, "gap", 0, "pause between connections")
	fs.Uint64Var(&c.size, "size", 200_000, "bytes each way of the first two connections and the last")
	fs.IntVar(&c.hopeless, "hopeless", 3, "stop after so many connections that took too long")
	fs.DurationVar(&c.budget, "budget", 15*time.Second, "begin no connection after it")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if c.to, err = netip.ParseAddrPort(to); err != nil {
		return fmt.Errorf("-to: %w", err)
	}
	if bind != "" {
		if c.bind, err = netip.ParseAddrPort(bind); err != nil {
			return fmt.Errorf("-bind: %w", err)
		}
	}
	return json.NewEncoder(out).Encode(c.visits())
}

func (c client) visits() []Observation {
	var all []Observation
	end := time.Now().Add(c.budget)
	for late := 0; len(all) < c.count && late < c.hopeless && time.Now().Before(end); time.Sleep(c.gap) {
		o := c.once(len(all))
		all = append(all, o)
		if o.TookTooLong() {
			late++
		}
	}
	return all
}

// once makes connection number i.
func (c client) once(i int) (o Observation) {
	end := time.Now().Add(c.patience)
	conn, err := c.dial(&o, end)
	if err != nil {
		o.Failed = "connect: " + errnoOf(err)
		return o
	}
	defer conn.Close()
	_ = conn.SetDeadline(end)
	o.Local = plain(conn.LocalAddr())
	if peer := plain(conn.RemoteAddr()); peer != c.to.String() {
		o.Peer = peer
	}
	size := c.size
	if i > 1 && i != c.count-1 {
		size = rand.Uint64N(2000)
	}
	if where, err := o.talk(conn, request{rand.Uint64(), size, size}); err != nil {
		o.Failed = fmt.Sprintf("%s: %s", where, errnoOf(err))
	}
	return o
}

// talk moves the bytes and says where it failed.
func (o *Observation) talk(conn *net.TCPConn, r request) (where string, err error) {
	if _, err := conn.Write(r.bytes()); err != nil {
		return "request", err
	}
	if err := send(conn, r.seed, r.up); err != nil {
		return "send", err
	}
	if err := conn.CloseWrite(); err != nil {
		return "shutdown", err
	}
	greeting := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, greeting); err != nil {
		return "greeting", err
	}
	if err := json.Unmarshal(greeting, &o.Server); err != nil {
		return "greeting", err
	}
	if o.Up = o.Server.Up; uint64(o.Up) != r.up {
		return "send", errWrongByte
	}
	if o.Down, err = receive(conn, ^r.seed, r.down); err != nil {
		return "receive", err
	}
	return "end", finished(conn)
}

var errGaveUp = errors.New("GAVE_UP")

// dial connects by the system calls themselves: package net would take other
// calls into the time, and try again after some errors.
func (c client) dial(o *Observation, end time.Time) (*net.TCPConn, error) {
	fd, err := unix.Socket(sockaddr.Family(c.to.Addr()), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "tcp")
	defer file.Close()
	if c.bind.IsValid() {
		if err := unix.Bind(fd, sockaddr.Of(c.bind)); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	err = unix.Connect(fd, sockaddr.Of(c.to))
	if errors.Is(err, unix.EINPROGRESS) {
		err = await(fd, end)
	}
	if o.ConnectMicros = time.Since(start).Microseconds(); err != nil {
		return nil, err
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// await waits for the outcome of a connect in progress. Of an ICMP error over IPv4 the
// kernel tells that there is one before it tells which (ip_icmp_error, tcp_v4_err): no
// error is a connection only where the SYN was acknowledged.
func await(fd int, end time.Time) error {
	for {
		left := time.Until(end)
		if left <= 0 {
			return errGaveUp
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left.Milliseconds())+1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return errGaveUp
		}
		if err := sockaddr.Err(fd); err != nil {
			return err
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.Bytes_acked > 0 {
			return err
		}
	}
}
