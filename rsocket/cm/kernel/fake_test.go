package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// fakeNet connects the fake kernels of a test.
type fakeNet struct {
	mu        sync.Mutex
	kernels   []*fakeKernel
	listeners map[uint16]*fakeID
	removed   uint32 // handles ever destroyed
	lastPort  uint16
}

// fakeKernel is a manager without a network. It reuses handles at once, as the kernel does.
type fakeKernel struct {
	net    *fakeNet
	gid    verbs.GID
	events chan []byte
	over   chan struct{}
	end    func()                          // closes over, once
	refuse map[rdmacm.Number]syscall.Errno // commands that fail
	mute   map[rdmacm.EventKind]bool       // events that do not come

	pkeyIndex uint16 // of all paths

	ids    map[uint32]*fakeID // guarded by net.mu
	closed bool
}

// fakeID is an identifier of a fakeKernel.
type fakeID struct {
	k        *fakeKernel
	handle   uint32
	uid      uint64
	port     uint16
	backlog  int
	param    connParam
	src, dst netip.AddrPort
	peer     *fakeID
	begun    bool // the peer knows of it
	settled  bool // the request or the connection was ended
}

func newFakeNet() *fakeNet { return &fakeNet{listeners: map[uint16]*fakeID{}, lastPort: 40000} }

func (n *fakeNet) kernel(addr netip.Addr) *fakeKernel {
	k := &fakeKernel{
		net: n, gid: verbs.GIDOf(addr), events: make(chan []byte, 1024), over: make(chan struct{}),
		refuse: map[rdmacm.Number]syscall.Errno{}, mute: map[rdmacm.EventKind]bool{}, ids: map[uint32]*fakeID{},
	}
	k.end = sync.OnceFunc(func() { close(k.over) })
	n.kernels = append(n.kernels, k)
	return k
}

// identifiers is how many there are.
func (n *fakeNet) identifiers() (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range n.kernels {
		count += len(k.ids)
	}
	return count
}

func (k *fakeKernel) newID() *fakeID {
	d := &fakeID{k: k}
	for d.handle = 1; k.ids[d.handle] != nil; d.handle++ {
	}
	k.ids[d.handle] = d
	return d
}

// tell sends an event to the owner of the identifier.
func (d *fakeID) tell(uid uint64, kind rdmacm.EventKind, status int32, param *connParam) {
	if uid == 0 || d.k.mute[kind] || d.k.closed {
		return
	}
	if param == nil {
		param = &connParam{}
	}
	b := native.AppendUint32(native.AppendUint64(nil, uid), d.handle)
	b = native.AppendUint32(native.AppendUint32(b, uint32(kind)), uint32(status))
	b = param.append(b)
	d.k.events <- pad(b, rdmacm.EventSize-len(b))
}

func (k *fakeKernel) Next(ctx context.Context, answer []byte) error {
	select {
	case b := <-k.events:
		copy(answer, b)
		return nil
	case <-k.over:
		return os.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *fakeKernel) Close() error {
	k.net.mu.Lock()
	defer k.net.mu.Unlock()
	k.closed = true
	for h := range k.ids {
		k.destroy(k.ids[h])
	}
	k.end()
	return nil
}

func (k *fakeKernel) Call(c rdmacm.Command, answer []byte) error {
	k.net.mu.Lock()
	defer k.net.mu.Unlock()
	if k.closed {
		return os.ErrClosed
	}
	if len(answer) != c.AnswerSize() {
		return fmt.Errorf("%v: room of %d bytes", c.Number(), len(answer))
	}
	if errno := k.refuse[c.Number()]; errno != 0 {
		return &rdmacm.CommandError{Command: c.Number().String(), Errno: errno}
	}
	if errno := k.do(c, answer); errno != 0 {
		return &rdmacm.CommandError{Command: c.Number().String(), Errno: errno}
	}
	return nil
}

func (k *fakeKernel) do(c rdmacm.Command, answer []byte) syscall.Errno {
	if c, ok := c.(rdmacm.CreateID); ok {
		d := k.newID()
		d.uid = c.UID
		native.PutUint32(answer, d.handle)
		return 0
	}
	body := rdmacm.Encode(c, 0)[8:]
	d := k.ids[handleOf(c)]
	if d == nil {
		return syscall.ENOENT
	}
	switch c := c.(type) {
	case destroyID:
		k.destroy(d)
	case bind:
		return d.bind(c.addr.AddrPort)
	case rdmacm.ResolveAddr:
		d.src, d.dst = c.Src.AddrPort, c.Dst.AddrPort
		if !d.src.Addr().IsValid() {
			k.net.lastPort++
			d.src = netip.AddrPortFrom(k.gid.Addr(), k.net.lastPort)
		}
		d.tell(d.uid, rdmacm.AddrResolved, 0, nil)
	case rdmacm.ResolveRoute:
		d.tell(d.uid, rdmacm.RouteResolved, 0, nil)
	case rdmacm.Query:
		return d.query(c.Option, answer)
	case rdmacm.InitQPAttr:
		copy(answer, fakeAttr(d, c.State))
	case listen:
		d.backlog = int(c.backlog)
		k.net.listeners[d.port] = d
	case connect:
		d.connect(body)
	case accept:
		return d.accept(c)
	case reject:
		d.settled = true
		d.peer.tell(d.peer.uid, rdmacm.Rejected, 28, &connParam{private: c.private})
	case disconnect:
		return d.disconnect()
	case notify:
		d.tell(d.uid, rdmacm.Established, 0, nil)
	}
	return 0
}

func handleOf(c rdmacm.Command) uint32 {
	switch c := c.(type) {
	case destroyID:
		return c.id
	case bind:
		return c.id
	case rdmacm.ResolveAddr:
		return c.ID
	case rdmacm.ResolveRoute:
		return c.ID
	case rdmacm.Query:
		return c.ID
	case rdmacm.InitQPAttr:
		return c.ID
	case listen:
		return c.id
	case connect:
		return c.id
	case accept:
		return c.id
	case reject:
		return c.id
	case disconnect:
		return c.id
	case notify:
		return c.id
	}
	return 0
}

func (d *fakeID) bind(a netip.AddrPort) syscall.Errno {
	d.port = a.Port()
	if d.port == 0 {
		d.k.net.lastPort++
		d.port = d.k.net.lastPort
	}
	if d.k.net.listeners[d.port] != nil {
		if a.Addr().IsUnspecified() {
			return syscall.EADDRNOTAVAIL
		}
		return syscall.EADDRINUSE
	}
	d.src = netip.AddrPortFrom(a.Addr(), d.port)
	return 0
}

func (d *fakeID) query(option rdmacm.QueryOption, answer []byte) syscall.Errno {
	b := append(pad(nil, 8), 1, 0, 0xff, 0xff, 0, 0, 0, 0)
	switch option {
	case rdmacm.QueryAddr:
		b = rdmacm.Sockaddr{AddrPort: d.dst}.Append(rdmacm.Sockaddr{AddrPort: d.src}.Append(b))
	case rdmacm.QueryGID:
		b = fakeIB(fakeIB(b, verbs.GIDOf(d.src.Addr())), verbs.GIDOf(d.dst.Addr()))
	case rdmacm.QueryPath: // none is known
	}
	copy(answer, b)
	return 0
}

func fakeIB(b []byte, gid verbs.GID) []byte {
	b = native.AppendUint16(b, familyIB)
	b = append(pad(b, 6), gid[:]...)
	return pad(b, rdmacm.SockaddrSize-24)
}

// fakeAttr are the attributes for the step to a state.
func fakeAttr(d *fakeID, state verbs.QPState) []byte {
	b := pad(nil, rdmacm.InitQPAttr{}.AnswerSize())
	native.PutUint32(b[12:], uint32(verbs.MTU2048))
	masks := map[verbs.QPState]verbs.QPAttrMask{verbs.QPSInit: verbs.InitMask, verbs.QPSRTR: verbs.RTRMask, verbs.QPSRTS: verbs.RTSMask}
	native.PutUint32(b, uint32(masks[state]))
	native.PutUint16(b[124:], d.k.pkeyIndex)
	native.PutUint32(b[4:], uint32(state))
	if d.peer != nil {
		native.PutUint32(b[32:], d.peer.param.qpn)
	}
	gid := verbs.GIDOf(d.dst.Addr())
	copy(b[40:], gid[:])
	b[40+29] = 1
	return b
}

// connect sends a request to the listener, which has a new identifier for it.
func (d *fakeID) connect(body []byte) {
	_ = d.param.parse(body)
	l := d.k.net.listeners[d.dst.Port()]
	if l == nil {
		d.tell(d.uid, rdmacm.Rejected, 8, nil)
		return
	}
	if l.backlog == 0 {
		d.peer = &fakeID{k: l.k, settled: true}
		d.tell(d.uid, rdmacm.Rejected, 28, nil)
		return
	}
	p := l.k.newID()
	p.src, p.dst, p.peer, d.peer = d.dst, d.src, d, p
	d.begun, p.begun = true, true
	p.param = connParam{}
	p.tell(l.uid, rdmacm.ConnectRequest, 0, &d.param)
}

func (d *fakeID) accept(c accept) syscall.Errno {
	if d.settled || d.peer == nil || d.peer.settled {
		return syscall.EINVAL
	}
	if c.param != nil {
		d.uid, d.param = c.uid, *c.param
		d.peer.tell(d.peer.uid, rdmacm.ConnectResponse, 0, c.param)
	} else {
		d.peer.tell(d.peer.uid, rdmacm.Established, 0, nil)
	}
	return 0
}

func (d *fakeID) disconnect() syscall.Errno {
	if d.peer == nil || d.settled {
		return syscall.EINVAL
	}
	d.settled = true
	d.peer.tell(d.peer.uid, rdmacm.Disconnected, 0, nil) // DREQ, or DREP where the peer was first
	return 0
}

// destroy forgets an identifier; a peer that waits is refused.
func (k *fakeKernel) destroy(d *fakeID) {
	delete(k.ids, d.handle)
	k.net.removed++
	if k.net.listeners[d.port] == d {
		delete(k.net.listeners, d.port)
	}
	if p := d.peer; p != nil && !d.settled && !p.settled {
		p.tell(p.uid, rdmacm.Rejected, 28, nil)
	}
	d.settled = true
}

// fakePair are the managers of two hosts.
type fakePair struct {
	net            *fakeNet
	ka, kb         *fakeKernel
	a, b           *Manager
	addrA, addrB   netip.Addr
	listenerOnHost netip.AddrPort
}

func newFakePair(t *testing.T) *fakePair {
	t.Helper()
	p := &fakePair{net: newFakeNet(), addrA: netip.MustParseAddr("10.0.0.1"), addrB: netip.MustParseAddr("10.0.0.2")}
	p.ka, p.kb = p.net.kernel(p.addrA), p.net.kernel(p.addrB)
	p.a, p.b = newManager(fakeDevice{p.addrA}, p.ka), newManager(fakeDevice{p.addrB}, p.kb)
	p.listenerOnHost = netip.AddrPortFrom(p.addrB, 7471)
	t.Cleanup(func() {
		require.NoError(t, p.a.Close())
		require.NoError(t, p.b.Close())
		require.Zero(t, p.net.identifiers())
	})
	return p
}

// fakeDevice is an adapter with one address, which is in the table as of RoCE v1, too.
type fakeDevice struct{ addr netip.Addr }

func (fakeDevice) Attr() verbs.DeviceAttr { return verbs.DeviceAttr{MaxRDAtomic: 16} }
func (d fakeDevice) Port() verbs.PortAttr {
	gid := verbs.GIDOf(d.addr)
	return verbs.PortAttr{GIDs: []verbs.GIDEntry{{}, {GID: gid, Type: verbs.GIDTypeRoCEv1}, {GID: gid, Type: verbs.GIDTypeRoCEv2}}}
}
