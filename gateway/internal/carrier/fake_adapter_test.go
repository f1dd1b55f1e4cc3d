package carrier

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// adapterTime is what making, changing or closing an object takes the fake adapter.
const adapterTime = 2 * time.Millisecond

// fakeHost is a host with adapters that are soft devices in disguise: slow, with small
// completion queues, and events that tests raise.
type fakeHost struct {
	t      testing.TB
	addr   netip.Addr
	port   uint16
	shards []*loop.Shard
	maxCQE int

	mu      sync.Mutex // guards everything below
	names   []string
	changed []chan struct{} // one for each that wants to hear
	refused error           // of Open
	opened  []*fakeAdapter
	onShard []string // what was called on the thread of a shard
	calls   int      // under way
	most    int      // calls that were under way at a time
}

func (h *fakeHost) List(layer verbs.LinkLayer) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if layer != verbs.LinkLayerEthernet {
		return nil, nil
	}
	return slices.Clone(h.names), nil
}

func (h *fakeHost) route(netip.Addr, netip.Addr) (int, error) { return fakeIfindex, nil }

func (h *fakeHost) Changed() (<-chan struct{}, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan struct{}, 1)
	h.changed = append(h.changed, ch)
	return ch, func() {}
}

// has sets which adapters there are, and has the carriers look.
func (h *fakeHost) has(names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = names
	for _, ch := range h.changed {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

const fakeIfindex = 7

func (h *fakeHost) Open(name string, vectors int) (AdapterPort, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused != nil {
		return nil, h.refused
	}
	dev, err := soft.Open(soft.Config{Name: name, Addrs: []netip.Addr{h.addr}, UDPPort: h.port, Vectors: vectors})
	if err != nil {
		return nil, err
	}
	a := &fakeAdapter{Device: dev, host: h, async: verbs.NewAsyncChannel(), cqs: map[verbs.CQ]*cqUse{}, tids: make([]int, vectors), reads: 16}
	a.attr = dev.Port()
	v2 := a.attr.GIDs[0]
	v2.Ifindex = fakeIfindex
	v1, elsewhere := v2, v2
	v1.Type, elsewhere.Ifindex = verbs.GIDTypeRoCEv1, fakeIfindex+1
	a.attr.GIDs = []verbs.GIDEntry{v1, {}, elsewhere, v2}
	h.opened = append(h.opened, a)
	return a, nil
}

// last returns the adapter that was opened last.
func (h *fakeHost) last() *fakeAdapter {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened[len(h.opened)-1]
}

// counted returns the calls of the adapter opened last, how many of all adapters ran at a
// time, and what was called on the thread of a shard.
func (h *fakeHost) counted() (calls, most int, onShard []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.opened[len(h.opened)-1].calls, h.most, slices.Clone(h.onShard)
}

// slowly notes a call that takes the adapter its time.
func (a *fakeAdapter) slowly(what string) {
	a.host.mu.Lock()
	a.calls++
	a.host.calls++
	a.host.most = max(a.host.most, a.host.calls)
	defer func() {
		a.host.mu.Lock()
		a.host.calls--
		a.host.mu.Unlock()
	}()
	if slices.Contains(a.tids, unix.Gettid()) {
		a.host.onShard = append(a.host.onShard, what+"\n"+string(debug.Stack()))
	}
	held := a.held[what]
	a.host.mu.Unlock()
	if held != nil {
		<-held
	}
	time.Sleep(adapterTime)
}

// fakeAdapter is one of the adapters.
type fakeAdapter struct {
	*soft.Device
	host  *fakeHost
	async *verbs.AsyncChannel

	// Guarded by host.mu.
	attr   verbs.PortAttr
	tids   []int // of the threads of the shards
	calls  int
	cqs    map[verbs.CQ]*cqUse
	noMem  error                    // of AllocMR and RegMR
	stuck  error                    // of the close of queue pairs
	reads  int                      // MaxRDAtomic
	hangs  func()                   // called by what connects a queue pair
	held   map[string]chan struct{} // calls that return when it is closed
	closed bool
}

// cqUse is the work requests of the queue pairs of a completion queue.
type cqUse struct{ depth, used, most int }

func (a *fakeAdapter) PKey(int) (uint16, error) { return 0xffff, nil }

func (a *fakeAdapter) Counters() any { return a.Stats() }

func (a *fakeAdapter) Async() *verbs.AsyncChannel { return a.async }

func (a *fakeAdapter) Attr() verbs.DeviceAttr {
	attr := a.Device.Attr()
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	attr.MaxCQE, attr.MaxRDAtomic = a.host.maxCQE, a.reads
	return attr
}

func (a *fakeAdapter) Port() verbs.PortAttr {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	p := a.attr
	p.GIDs = slices.Clone(p.GIDs)
	return p
}

// change changes the port and raises an event.
func (a *fakeAdapter) change(e verbs.EventType, fn func(*verbs.PortAttr)) {
	a.host.mu.Lock()
	fn(&a.attr)
	a.host.mu.Unlock()
	a.async.Notify(verbs.AsyncEvent{Type: e})
}

func (a *fakeAdapter) CreateCQ(attr verbs.CQAttr) (verbs.CQ, error) {
	a.slowly("CreateCQ")
	if attr.Depth > a.host.maxCQE {
		return nil, verbs.ErrInvalid
	}
	cq, err := a.Device.CreateCQ(attr)
	if err != nil {
		return nil, err
	}
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	a.cqs[cq] = &cqUse{depth: attr.Depth}
	return cq, nil
}

func (a *fakeAdapter) AllocPD() (verbs.PD, error) {
	a.slowly("AllocPD")
	pd, err := a.Device.AllocPD()
	return &fakePD{pd, a}, err
}

func (a *fakeAdapter) Drive(i int, p verbs.Poller) (verbs.Driver, error) {
	drv, err := a.Device.Drive(i, p)
	return &fakeDriver{drv, a, i}, err
}

func (a *fakeAdapter) Close() error {
	a.host.mu.Lock()
	a.closed = true
	a.host.mu.Unlock()
	if st := a.Stats(); st.QPs+st.MRs > 0 {
		return fmt.Errorf("%d queue pairs and %d regions are left: %w", st.QPs, st.MRs, verbs.ErrBusy)
	}
	return a.Device.Close()
}

func (a *fakeAdapter) isClosed() bool {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	return a.closed
}

// most is the largest use of a completion queue, and how many there are.
func (a *fakeAdapter) most() (use []cqUse) {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	for _, u := range a.cqs {
		use = append(use, *u)
	}
	return use
}

type fakeDriver struct {
	verbs.Driver
	a *fakeAdapter
	i int
}

func (d *fakeDriver) Progress(now time.Time) (bool, time.Time) {
	if d.a.tids[d.i] == 0 {
		d.a.host.mu.Lock()
		d.a.tids[d.i] = unix.Gettid()
		d.a.host.mu.Unlock()
	}
	return d.Driver.Progress(now)
}

type fakePD struct {
	verbs.PD
	a *fakeAdapter
}

func (p *fakePD) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	p.a.slowly("AllocMR")
	p.a.host.mu.Lock()
	err := p.a.noMem
	p.a.host.mu.Unlock()
	if err != nil {
		return nil, err
	}
	mr, err := p.PD.AllocMR(size, access)
	return &fakeMR{mr, p.a}, err
}

func (p *fakePD) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	p.a.slowly("RegMR")
	mr, err := p.PD.RegMR(buf, access)
	return &fakeMR{mr, p.a}, err
}

func (p *fakePD) Close() error {
	p.a.slowly("PD.Close")
	return p.PD.Close()
}

type fakeMR struct {
	verbs.MR
	a *fakeAdapter
}

func (m *fakeMR) Close() error {
	m.a.slowly("MR.Close")
	return m.MR.Close()
}

func (p *fakePD) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	p.a.slowly("CreateQP")
	if attr.Cap.MaxRecvSGE == 0 {
		return nil, verbs.ErrInvalid
	}
	qp, err := p.PD.CreateQP(attr)
	if err != nil {
		return nil, err
	}
	p.a.host.mu.Lock()
	defer p.a.host.mu.Unlock()
	u := p.a.cqs[attr.SendCQ]
	u.used += attr.Cap.MaxSendWR + attr.Cap.MaxRecvWR
	u.most = max(u.most, u.used)
	return &fakeQP{qp, p.a, u, attr.Cap, attr.SendCQ.Vector()}, nil
}

// fakeQP is a queue pair. What the soft device wants done by the loop of the vector is
// done there.
type fakeQP struct {
	verbs.QP
	a      *fakeAdapter
	use    *cqUse
	limits verbs.QPCap
	vector int
}

func (q *fakeQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) (err error) {
	if attr.State == verbs.QPSErr { // as tests do, on the shard
		return q.QP.Modify(attr, mask)
	}
	q.a.slowly("Modify")
	q.a.host.mu.Lock()
	hangs := q.a.hangs
	q.a.host.mu.Unlock()
	if hangs != nil && attr.State == verbs.QPSRTR {
		hangs()
	}
	at := *attr
	if most := q.a.Attr().MaxRDAtomic; int(max(at.MaxRDAtomic, at.MaxDestRDAtomic)) > most {
		return fmt.Errorf("more than %d reads: %w", most, verbs.ErrInvalid)
	}
	if mask&verbs.QPAttrAV != 0 {
		if at.AH.SGIDIndex != 3 || at.AH.TrafficClass != 104 || at.AH.SL != 3 {
			return fmt.Errorf("address %+v: %w", at.AH, verbs.ErrInvalid)
		}
		at.AH.SGIDIndex, at.AH.UDPPort = 0, q.a.host.port
	}
	q.a.host.shards[q.vector].Call(func() { err = q.QP.Modify(&at, mask) })
	return err
}

func (q *fakeQP) Close() (err error) {
	q.a.slowly("QP.Close")
	q.a.host.mu.Lock()
	stuck := q.a.stuck
	q.a.host.mu.Unlock()
	if stuck != nil {
		return stuck
	}
	q.a.host.shards[q.vector].Call(func() { err = q.QP.Close() })
	q.a.host.mu.Lock()
	defer q.a.host.mu.Unlock()
	q.use.used -= q.limits.MaxSendWR + q.limits.MaxRecvWR
	return err
}
