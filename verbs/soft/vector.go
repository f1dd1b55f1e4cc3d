package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

const (
	// receiveBudget is how many datagrams a turn receives before other work is done.
	receiveBudget = 1024
	// turnPackets is how many packets one queue pair may send per turn, or as many small ones as make turnBytes: bytes
	// sent together wake the receiver once, and the end of a turn cuts a train short.
	turnPackets = 128
	turnBytes   = 512 << 10
	// strayLimit bounds the datagrams that wait for another vector's loop.
	strayLimit = 512
)

// vector is one event loop's part of the device: its queue pairs, sockets and timers. Only the loop touches it, except
// for strays.
type vector struct {
	dev     *Device
	index   int
	link    link
	tx      *transmitter
	base    time.Time
	arrived int   // datagrams in this turn
	now     int64 // time of this turn, nanoseconds since base; never 0

	table    map[uint32]*qp // by number: queue pairs that receive
	last     *qp            // last one found, since datagrams of a train are for the same queue pair
	gsi      *qp
	ready    []*qp // queue pairs that have something to send
	spare    []*qp
	acks     []*qp // queue pairs that owe an answer
	timers   timerHeap
	early    earlyPool
	overruns []*cq
	paths    map[pathKey]*path
	flows    map[flowKey]*wire.ICRC
	lastKey  flowKey
	lastFlow *wire.ICRC
	nextID   uint16      // expected IPv4 identification: they count up from 0 in each train
	header   wire.Header // of the packet being handled
	parts    [][]byte    // of the packet being built

	driven  atomic.Bool
	strayed atomic.Bool // strays is not empty
	wakeFD  int

	strayMu sync.Mutex // guards everything below
	strays  []stray
	closed  bool
}

// stray is a datagram that the kernel delivered to the wrong vector.
type stray struct {
	d    datagram
	data []byte
}

func newVector(d *Device, index int) (*vector, error) {
	l, err := d.cfg.newLink(&d.cfg, index)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = l.close()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	v := &vector{
		dev: d, index: index, link: l, tx: newTransmitter(l, d.cfg.ECN), wakeFD: fd, now: 1,
		table: map[uint32]*qp{}, paths: map[pathKey]*path{}, flows: map[flowKey]*wire.ICRC{}, parts: make([][]byte, 0, maxSGE),
	}
	v.tx.narrow, v.early.mtu = v.narrow, d.mtu.Bytes()
	return v, nil
}

// driver is the handle with which an event loop drives a vector.
type driver struct {
	v *vector
	p verbs.Poller
}

var _ verbs.Driver = (*driver)(nil)

func (v *vector) drive(p verbs.Poller) (verbs.Driver, error) {
	if v.dev.isClosed() {
		return nil, verbs.ErrClosed
	}
	if !v.driven.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("vector %d: %w", v.index, verbs.ErrBusy)
	}
	for i, fd := range v.fds() {
		if err := p.Add(fd); err != nil {
			for _, added := range v.fds()[:i] {
				_ = p.Remove(added)
			}
			v.driven.Store(false)
			return nil, fmt.Errorf("poll vector %d: %w", v.index, err)
		}
	}
	return &driver{v: v, p: p}, nil
}

func (v *vector) fds() []int { return append(v.link.fds(), v.wakeFD) }

func (d *driver) Progress(now time.Time) (worked bool, next time.Time) {
	v := d.v
	v.setNow(now)
	v.arrived = 0
	more := v.link.receive(receiveBudget, v)
	worked = v.takeStrays() || more || v.arrived > 0
	for q := v.timers.pop(v.now); q != nil; q = v.timers.pop(v.now) {
		q.expired()
		worked = true
	}
	worked = worked || v.pending()
	if at := v.timers.next(); at != 0 {
		next = v.base.Add(time.Duration(at))
	}
	return worked, next
}

// setNow begins a turn. Time never goes back.
func (v *vector) setNow(now time.Time) {
	if v.base.IsZero() {
		v.base = now.Add(-1)
	}
	v.now = max(v.now, int64(now.Sub(v.base)))
}

// Flush implements verbs.Driver. It sends everything of a turn, in as few trains as possible: an acknowledgement goes
// after the loop's answer to the request, and only extends its train.
func (d *driver) Flush() {
	v := d.v
	v.overrun()
	v.run()
	v.answer()
	v.tx.flush()
}

// pending reports whether Flush has something to do.
func (v *vector) pending() bool {
	return len(v.ready) > 0 || len(v.acks) > 0 || len(v.overruns) > 0
}

// Arm implements verbs.Driver: datagrams wake the loop by themselves.
func (d *driver) Arm() bool { return !d.v.pending() && !d.v.strayed.Load() }

func (d *driver) Disarm() {}

func (d *driver) Close() error {
	if d.v == nil {
		return nil
	}
	for _, fd := range d.v.fds() {
		_ = d.p.Remove(fd)
	}
	d.v.driven.Store(false)
	d.v = nil
	return nil
}

// schedule makes q send what it can at the next Flush.
func (v *vector) schedule(q *qp) {
	if !q.queued && !q.closed {
		q.queued = true
		v.ready = append(v.ready, q)
	}
}

// owe makes q answer after everything that has arrived is processed.
func (v *vector) owe(q *qp) {
	if !q.owes {
		q.owes = true
		v.acks = append(v.acks, q)
	}
}

// answer sends the acknowledgements of a turn: one per queue pair, however many requests it covers.
func (v *vector) answer() {
	for i := 0; i < len(v.acks); i++ { // a queue pair that refuses owes again
		q := v.acks[i]
		q.owes = false
		if !q.closed {
			q.respond()
		}
	}
	clear(v.acks)
	v.acks = v.acks[:0]
}

// run lets every ready queue pair send its share.
func (v *vector) run() {
	if len(v.ready) == 0 {
		return
	}
	list := v.ready
	v.ready = v.spare[:0]
	for _, q := range list {
		q.queued = false
		if !q.closed {
			q.transmit()
		}
	}
	clear(list)
	v.spare = list[:0]
}

// narrow is called when the kernel refuses a train because its path has become narrower. The path MTU of a connection
// cannot change, since every PSN stands for so many bytes. So connections to that host whose packets may be as long, and
// that have something to send, fail; to repeat it could not help. They do so in their next turn, since one of them may
// be sending just now.
func (v *vector) narrow(t *train) {
	for _, q := range v.table {
		if q.kind == verbs.QPTRC && q.av.local == t.local && q.av.dst == t.dst &&
			q.mtu+arenaPerPacket >= t.size && !q.sq.Idle() {
			q.narrow = true
			v.schedule(q)
		}
	}
}

// overrun takes down the queue pairs of CQs that lost completions.
func (v *vector) overrun() {
	for len(v.overruns) > 0 {
		c := v.overruns[0]
		v.overruns = v.overruns[1:]
		for _, q := range v.table {
			if q.scq == c || q.rcq == c {
				q.fatal()
			}
		}
		if q := v.gsi; q != nil && (q.scq == c || q.rcq == c) {
			q.fatal()
		}
	}
}

// install makes a queue pair receive packets.
func (v *vector) install(q *qp) {
	if q.num == gsiQPN {
		v.gsi = q
		return
	}
	v.table[q.num] = q
}

func (v *vector) uninstall(q *qp) {
	if v.last == q {
		v.last = nil
	}
	switch {
	case v.gsi == q:
		v.gsi = nil
	case v.table[q.num] == q:
		delete(v.table, q.num)
	}
}

// lookup returns the queue pair with that number if it receives.
func (v *vector) lookup(qpn uint32) *qp {
	if qpn == gsiQPN {
		return v.gsi
	}
	v.last = v.table[qpn]
	return v.last
}

func (v *vector) close() error {
	v.strayMu.Lock()
	defer v.strayMu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	v.strays = nil
	_ = unix.Close(v.wakeFD)
	return v.link.close()
}
