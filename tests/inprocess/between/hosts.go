package between

import (
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

const (
	nonces   = 512 // offset of the nonces in a mirror
	slowFrom = 512 // bytes of a piece that Faults.Slow concerns
)

// Faults are faults that strike connections at random moments.
type Faults struct {
	Carrier, Gateway, Recall float64       // probability for each connection
	Stops                    bool          // a gateway that is struck does not die, but stands still, maybe for seconds only
	Both                     bool          // recall both directions, not just one now and then
	Within                   time.Duration // time after the promotion
	After                    uint64        // ring bytes before them
	Delay                    time.Duration // the longest delay of ring bytes and words
	Slow                     time.Duration // between larger pieces of ring bytes that are on their way
	Whole                    bool          // deliver small messages whole, as most programs expect
}

// Hosts is the broker and all gateways.
type Hosts struct {
	dir    string
	l      int
	faults Faults
	rng    *mrand.Rand

	mu      sync.Mutex
	clients map[*client]bool
	waiting map[string]*asking
	all     sync.WaitGroup
	done    chan struct{}

	Promoted, Moved, Missed, Struck atomic.Int64
	Closed                          atomic.Int64 // ends of which CLOSED has come
}

// client is a process that uses the broker.
type client struct {
	h    *Hosts
	fd   int
	news *memory
	desk *memory
	mu   sync.Mutex
	ends map[uint32]*side
	dead atomic.Bool // its gateway has died
}

type asking struct {
	c   *client
	tag uint32
}

// side is one end of a promoted connection.
type side struct {
	c           *client
	tag         uint32
	came        atomic.Int64 // descriptor of the socket + 1; 0: not yet there; -1: let go
	own, mirror *memory
	bell        int
	left        atomic.Bool // its process has left the broker without CLOSED
	closed      atomic.Bool // nothing more comes from it

	rung, want uint32
	flags      uint32
	dead       bool      // its gateway has died
	leftAt     time.Time // when left was seen
	rings      bool      // the socket has come and was rung
	ended      bool      // no process has its memory any more, and the kernel has sent what it was given
	sends      chan bool // from the end of its process until then: gets whether all was sent
	sent       bool
}

func (s *side) socket() int { return int(s.came.Load() - 1) }

// Open starts a broker and gateways.
func Open(f Faults, seed uint64) (*Hosts, error) {
	dir, err := os.MkdirTemp("", "smcgw-bt")
	if err != nil {
		return nil, err
	}
	h := &Hosts{dir: dir, faults: f, rng: mrand.New(mrand.NewPCG(seed, 7)), clients: map[*client]bool{}, waiting: map[string]*asking{}, done: make(chan struct{})}
	if h.l, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if err = unix.Bind(h.l, &unix.SockaddrUnix{Name: h.Socket()}); err != nil {
		return nil, err
	}
	if err = errors.Join(unix.Listen(h.l, 128), os.Chmod(dir, 0o755), os.Chmod(h.Socket(), 0o666)); err != nil { // programs may run as another user
		return nil, err
	}
	h.all.Go(h.accept)
	return h, nil
}

// Socket returns the path at which programs find the broker.
func (h *Hosts) Socket() string { return filepath.Join(h.dir, "s") }

// Close ends everything.
func (h *Hosts) Close() error {
	close(h.done)
	_ = unix.Shutdown(h.l, unix.SHUT_RDWR)
	h.mu.Lock()
	for c := range h.clients {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
	h.mu.Unlock()
	h.all.Wait()
	_ = unix.Close(h.l)
	return os.RemoveAll(h.dir)
}

func (h *Hosts) accept() {
	for {
		fd, _, err := unix.Accept4(h.l, unix.SOCK_CLOEXEC)
		if err != nil {
			select {
			case <-h.done:
				return
			default:
				continue
			}
		}
		c := &client{h: h, fd: fd, ends: map[uint32]*side{}}
		h.mu.Lock()
		h.clients[c] = true
		h.mu.Unlock()
		h.all.Go(c.serve)
	}
}

func (c *client) send(r inprocess.Record, fds ...int) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_ = unix.Sendmsg(c.fd, r.Append(nil), oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

func (c *client) serve() {
	defer c.ends_()
	b, oob := make([]byte, inprocess.RecordSize), make([]byte, 256)
	for {
		n, on, _, _, err := unix.Recvmsg(c.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		var fds []int
		if ms, err := unix.ParseSocketControlMessage(oob[:on]); err == nil {
			for i := range ms {
				f, _ := unix.ParseUnixRights(&ms[i])
				fds = append(fds, f...)
			}
		}
		r, err := inprocess.ParseRecord(b[:n])
		if err != nil {
			return
		}
		switch r.What {
		case inprocess.Hello:
			_ = unix.Close(fds[0])
			c.hello()
		case inprocess.Ask:
			c.ask(r, fds[0])
		case inprocess.Socket:
			c.socket(r.Tag, fds[0])
		case inprocess.Closed:
			c.closed(r.Tag)
		}
	}
}

func (c *client) hello() {
	var err error
	if c.desk, err = newMemory(inprocess.DeskSize); err != nil {
		return
	}
	if c.news, err = newMemory(inprocess.NewsSize); err != nil {
		return
	}
	c.news.w32(inprocess.NewsMagic).Store(inprocess.Magic)
	c.news.w32(inprocess.NewsVersion).Store(inprocess.Version)
	c.news.w32(inprocess.NewsCalls).Store(1)
	r, _ := c.news.reading()
	c.send(inprocess.Record{What: inprocess.Welcome}, c.desk.file, r)
	_ = unix.Close(r)
}

func name(s unix.Sockaddr) string {
	switch a := s.(type) {
	case *unix.SockaddrInet4:
		return fmt.Sprint(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)))
	case *unix.SockaddrInet6:
		return fmt.Sprint(netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)))
	}
	return ""
}

func (c *client) ask(r inprocess.Record, fd int) {
	h := c.h
	local, err := unix.Getsockname(fd)
	remote, missing := unix.Getpeername(fd)
	_ = unix.Close(fd)
	c.news.w32(inprocess.NewsQuestions).Add(1)
	if err != nil || missing != nil {
		c.send(inprocess.Record{What: inprocess.Deny, Tag: r.Tag, Why: inprocess.WhyNoPeer})
		c.news.w32(inprocess.NewsGrants).Add(1)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	mine, other := name(local)+" "+name(remote), name(remote)+" "+name(local)
	a := &asking{c, r.Tag}
	o := h.waiting[other]
	if o == nil || o.c.dead.Load() {
		h.waiting[mine] = a
		return
	}
	delete(h.waiting, other)
	delete(h.waiting, mine)
	h.grant([2]*asking{o, a})
}

func (h *Hosts) grant(a [2]*asking) {
	order := 16 + uint32(h.rng.IntN(3))
	k := &connection{h: h, size: 1 << order, rng: mrand.New(mrand.NewPCG(h.rng.Uint64(), 1))}
	var n [2][16]byte
	for i := range n {
		_, _ = rand.Read(n[i][:])
	}
	id := h.rng.Uint64()
	for i := range a {
		s := &side{c: a[i].c, tag: a[i].tag}
		k.side[i] = s
		for _, m := range []**memory{&s.own, &s.mirror} {
			*m, _ = newMemory(inprocess.EndSize(order))
			(*m).w32(inprocess.EndMagic).Store(inprocess.Magic)
			(*m).w32(inprocess.EndVersion).Store(inprocess.Version)
			(*m).w64(inprocess.EndID).Store(id)
			(*m).w32(inprocess.EndOrderMax).Store(order)
			(*m).w32(inprocess.EndOrder).Store(order)
		}
		copy(s.mirror.b[nonces:], n[1-i][:]) // by which the peer opens
		copy(s.mirror.b[nonces+16:], n[i][:])
		s.bell, _ = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	for i, s := range k.side {
		s.c.mu.Lock()
		s.c.ends[s.tag] = s
		s.c.mu.Unlock()
		r, _ := s.mirror.reading()
		s.c.send(inprocess.Record{What: inprocess.Grant, Tag: s.tag, ID: id, Side: uint32(i)}, s.own.file, r, s.bell)
		_ = unix.Close(r)
		if err := s.own.handed(); err != nil {
			panic(err)
		}
		s.c.news.w32(inprocess.NewsGrants).Add(1)
		if s.c.dead.Load() {
			s.closed.Store(true)
		}
	}
	h.Promoted.Add(1)
	h.all.Go(k.run)
}

// socket takes the socket by which a side is rung.
func (c *client) socket(tag uint32, fd int) {
	c.news.w32(inprocess.NewsQuestions).Add(1)
	c.mu.Lock()
	s := c.ends[tag]
	c.mu.Unlock()
	if s == nil || !s.came.CompareAndSwap(0, int64(fd)+1) {
		_ = unix.Close(fd)
	}
}

func (c *client) closed(tag uint32) {
	c.mu.Lock()
	s := c.ends[tag]
	delete(c.ends, tag)
	c.mu.Unlock()
	if s != nil {
		s.closed.Store(true)
		c.h.Closed.Add(1)
		return
	}
	c.h.mu.Lock()
	for n, a := range c.h.waiting {
		if a.c == c && a.tag == tag {
			delete(c.h.waiting, n)
		}
	}
	c.h.mu.Unlock()
}

// ends_ runs once the process, or its gateway, has ended.
func (c *client) ends_() {
	h := c.h
	h.mu.Lock()
	delete(h.clients, c)
	for n, a := range h.waiting {
		if a.c == c {
			delete(h.waiting, n)
		}
	}
	h.mu.Unlock()
	c.mu.Lock()
	for _, s := range c.ends {
		if c.dead.Load() {
			s.closed.Store(true)
		} else {
			s.left.Store(true)
		}
	}
	c.ends = map[uint32]*side{}
	c.mu.Unlock()
	for _, m := range []*memory{c.desk, c.news} {
		if m != nil {
			m.close()
		}
	}
	_ = unix.Close(c.fd)
}

// kill ends the gateway of a process without a message.
func (c *client) kill() {
	c.dead.Store(true)
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
}
