package e2e

import (
	"bytes"
	"context"
	endian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
)

// stormApps are the programs of the storm: many clients that begin at once, and servers that count their accept()s.
//
//	storm-serve SOCKET ADDRESS    opens listeners and reports on them, as asked on SOCKET
//	storm JSON                    a client of one run ([storm]); prints a [stormResult]
//
// Rounds through the gateway alternate with rounds without it, which use ports of no policy.
var stormApps = []apps.App{{Name: "storm-serve", Run: runStormServe}, {Name: "storm", Run: runStorm}}

// storm is one run of the clients.
type storm struct {
	Control string     // socket on which the server is asked
	To      netip.Addr // the server
	OneShot bool       // one listener for each connection, or else one for all of a group
	Rounds  int        // of each group
	AtOnce  int        // clients of a round
}

// stormGroups are the groups that are compared: connections through the gateway, and native ones.
var stormGroups = [...]stormGroup{{"carried", 11000}, {"native", 21000}}

type stormGroup struct {
	name  string
	first uint16 // port
}

// stormTally is what a server has seen of one group.
type stormTally struct {
	Accepted, Served int            // accept()s, and those whose messages came and went
	Broken           map[string]int // all others, by error
}

// stormOutcome is what became of the connections of one group.
type stormOutcome struct {
	Tries, Connected, OK int
	Failed               map[string]int // of connect() or of the exchange, by error
	Micros               []int64        // of each connect() that succeeded
	Slow                 []int64        // microseconds of connect() that only one in a hundred exceeds, for each round
	Server               stormTally
}

// extra returns how many accept()s are not explained by a client's successful connect().
func (o stormOutcome) extra() int { return o.Server.Accepted - o.Connected }

// of returns a quantile of the times of connect().
func (o stormOutcome) of(perCent int) time.Duration { return quantile(o.Micros, perCent) }

// usual returns the median over the rounds of the slowest of a hundred. If a machine stands still during a few
// rounds, these alone would have all of the slowest of a hundred.
func (o stormOutcome) usual() time.Duration { return quantile(o.Slow, 50) }

func quantile(micros []int64, perCent int) time.Duration {
	if len(micros) == 0 {
		return 0
	}
	slices.Sort(micros)
	return time.Duration(micros[len(micros)*perCent/100]) * time.Microsecond
}

func (o *stormOutcome) add(other stormOutcome) {
	o.Tries, o.Connected, o.OK = o.Tries+other.Tries, o.Connected+other.Connected, o.OK+other.OK
	o.Server.Accepted, o.Server.Served = o.Server.Accepted+other.Server.Accepted, o.Server.Served+other.Server.Served
	o.Micros, o.Slow = append(o.Micros, other.Micros...), append(o.Slow, other.Slow...)
	for _, m := range []struct {
		to   *map[string]int
		from map[string]int
	}{{&o.Failed, other.Failed}, {&o.Server.Broken, other.Server.Broken}} {
		for text, n := range m.from {
			if *m.to == nil {
				*m.to = map[string]int{}
			}
			(*m.to)[text] += n
		}
	}
}

func (o stormOutcome) String() string {
	return fmt.Sprintf("tries=%d failed=%d %v extra_accepts=%d broken=%v connect_p50=%v connect_p99=%v, of a round %v to %v, half up to %v",
		o.Tries, o.Tries-o.OK, o.Failed, o.extra(), o.Server.Broken, o.of(50), o.of(99),
		quantile(o.Slow, 0), quantile(o.Slow, 99), o.usual())
}

// stormPatience bounds every wait of a connection.
const stormPatience = 30 * time.Second

// stormRequest is what a client asks of the server: listeners, or the tally of all groups, which closes all listeners.
type stormRequest struct {
	Group   string
	OneShot bool
	First   uint16
	Count   int
}

type stormReply struct {
	Error string
	Tally map[string]stormTally
}

// stormServer counts what it accepts.
type stormServer struct {
	addr  string
	mu    sync.Mutex // guards what follows
	tally map[string]stormTally
	lns   []net.Listener
	busy  sync.WaitGroup // goroutines of listeners and connections
}

// runStormServe serves one client after another until it is killed.
func runStormServe(args []string, print func(apps.Event)) error {
	ln, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	print(apps.Event{Event: "listening"})
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		s := &stormServer{addr: args[1], tally: map[string]stormTally{}}
		in, out := json.NewDecoder(c), json.NewEncoder(c)
		for {
			var req stormRequest
			if err := in.Decode(&req); err != nil {
				break // the client has ended
			}
			if err := out.Encode(s.answer(req)); err != nil {
				break
			}
		}
		_ = c.Close()
	}
}

func (s *stormServer) answer(req stormRequest) stormReply {
	if req.Count == 0 {
		return stormReply{Tally: s.end()}
	}
	for i := range req.Count {
		c := net.ListenConfig{}
		c.SetMultipathTCP(false)
		ln, err := c.Listen(context.Background(), "tcp", net.JoinHostPort(s.addr, strconv.Itoa(int(req.First)+i)))
		if err != nil {
			return stormReply{Error: err.Error()}
		}
		s.lns = append(s.lns, ln)
		s.busy.Go(func() { s.accept(req.Group, ln, req.OneShot) })
	}
	return stormReply{}
}

func (s *stormServer) accept(group string, ln net.Listener, once bool) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		if once {
			_ = ln.Close()
		}
		s.note(group, func(t *stormTally) { t.Accepted++ })
		s.busy.Go(func() {
			err := stormServe(c)
			s.note(group, func(t *stormTally) {
				if err == nil {
					t.Served++
				} else {
					t.Broken[stormError(err)]++
				}
			})
		})
		if once {
			return
		}
	}
}

func (s *stormServer) note(group string, fn func(*stormTally)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tally[group]
	if t.Broken == nil {
		t.Broken = map[string]int{}
	}
	fn(&t)
	s.tally[group] = t
}

// end waits until no accept() has come for a while, then until all connections have ended, and returns the tally.
func (s *stormServer) end() map[string]stormTally {
	for last, now := -1, s.accepted(); now != last; last, now = now, s.accepted() {
		time.Sleep(500 * time.Millisecond)
	}
	for _, ln := range s.lns {
		_ = ln.Close()
	}
	s.busy.Wait()
	return s.tally
}

func (s *stormServer) accepted() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tally {
		n += t.Accepted
	}
	return n
}

// stormSize is the length of a message. The client's begins with the number of its connection, from which the rest
// follows; the server's is the same, inverted.
const stormSize = 2048

func stormMessage(id uint64) []byte {
	b := make([]byte, 0, stormSize)
	for x := id; len(b) < stormSize; x = x*6364136223846793005 + 1442695040888963407 {
		b = endian.BigEndian.AppendUint64(b, x)
	}
	return b
}

var errStormBytes = errors.New("WRONG_BYTES")

func stormServe(c net.Conn) error {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(stormPatience))
	b := make([]byte, stormSize)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if !bytes.Equal(b, stormMessage(endian.BigEndian.Uint64(b))) {
		return errStormBytes
	}
	for i := range b {
		b[i] = ^b[i]
	}
	_, err := c.Write(b)
	return err
}

// stormCall is one connection of a client.
func stormCall(to string, id uint64) (connect time.Duration, err error) {
	d := net.Dialer{Timeout: stormPatience}
	d.SetMultipathTCP(false)
	start := time.Now()
	c, err := d.Dial("tcp", to)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	connect = time.Since(start)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(stormPatience))
	b := stormMessage(id)
	if _, err := c.Write(b); err != nil {
		return connect, fmt.Errorf("write: %w", err)
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return connect, fmt.Errorf("read: %w", err)
	}
	for i := range b {
		b[i] = ^b[i]
	}
	if !bytes.Equal(got, b) {
		return connect, fmt.Errorf("read: %w", errStormBytes)
	}
	return connect, nil
}

// stormError returns a short name for an error: the client's operation and the errno.
func stormError(err error) string {
	op, _, more := strings.Cut(err.Error(), ": ")
	name := op
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		name = unix.ErrnoName(errno)
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		name = "TIMEOUT"
	} else if more {
		name = err.Error()[len(op)+2:]
	}
	if op == "connect" || op == "write" || op == "read" {
		return op + " " + name
	}
	return name
}

// runStorm is the client.
func runStorm(args []string, _ func(apps.Event)) error {
	var s storm
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	c, err := net.Dial("unix", s.Control)
	if err != nil {
		return err
	}
	defer c.Close()
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	ask := func(req stormRequest) (reply stormReply, err error) {
		if err = out.Encode(req); err == nil {
			err = in.Decode(&reply)
		}
		if err == nil && reply.Error != "" {
			err = errors.New(reply.Error)
		}
		return reply, err
	}
	result := map[string]stormOutcome{}
	for round := range s.Rounds {
		for _, g := range stormGroups {
			req := stormRequest{Group: g.name, First: g.first, Count: 1}
			if s.OneShot {
				req.OneShot, req.First, req.Count = true, g.first+uint16(round*s.AtOnce), s.AtOnce
			}
			if s.OneShot || round == 0 {
				if _, err := ask(req); err != nil {
					return err
				}
			}
			o := result[g.name]
			o.add(s.round(req, uint64(g.first)<<32|uint64(round)<<16))
			result[g.name] = o
		}
	}
	reply, err := ask(stormRequest{})
	if err != nil {
		return err
	}
	for _, g := range stormGroups {
		o := result[g.name]
		o.Server = reply.Tally[g.name]
		result[g.name] = o
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// round starts all clients at the same moment.
func (s storm) round(ports stormRequest, id uint64) (o stormOutcome) {
	var (
		mu   sync.Mutex // guards o
		all  sync.WaitGroup
		gate = make(chan struct{})
	)
	o = stormOutcome{Tries: s.AtOnce, Failed: map[string]int{}}
	for i := range s.AtOnce {
		to := netip.AddrPortFrom(s.To, ports.First+uint16(i%ports.Count)).String()
		all.Go(func() {
			<-gate
			took, err := stormCall(to, id+uint64(i))
			mu.Lock()
			defer mu.Unlock()
			if took > 0 {
				o.Connected, o.Micros = o.Connected+1, append(o.Micros, took.Microseconds())
			}
			if err != nil {
				o.Failed[stormError(err)]++
			} else {
				o.OK++
			}
		})
	}
	close(gate)
	all.Wait()
	o.Slow = []int64{o.of(99).Microseconds()}
	return o
}
