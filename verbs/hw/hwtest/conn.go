package hwtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// conn implements ibv.Context.
type conn struct {
	a       *adapter
	asyncFD int

	mu      sync.Mutex // guards everything below
	last    uintptr
	objects map[uintptr]any // by handle
	ids     map[any]uint64  // of objects that events concern
	events  []ibv.Event
	closed  bool
}

var _ ibv.Context = (*conn)(nil)

// enter assigns a handle to an object, and records the id that its events carry.
func enter[T ~uintptr](c *conn, obj any, key any, id uint64) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last += 16
	c.objects[c.last] = obj
	if key != nil {
		c.ids[key] = id
	}
	return T(c.last)
}

// of returns the object of a handle.
func of[O any, T ~uintptr](c *conn, handle T) O {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.objects[uintptr(handle)].(O)
	if !ok || c.closed {
		panic(fmt.Sprintf("hwtest: %T %#x used after its end", handle, uintptr(handle)))
	}
	return o
}

// leave removes a handle.
func leave[T ~uintptr](c *conn, handle T, key any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.objects, uintptr(handle))
	delete(c.ids, key)
}

// errno converts an error to what the library returns.
func errno(err error) error {
	for _, m := range []struct {
		is error
		no unix.Errno
	}{
		{verbs.ErrNoMemory, unix.ENOMEM},
		{verbs.ErrQueueFull, unix.ENOMEM},
		{verbs.ErrBusy, unix.EBUSY},
		{verbs.ErrNotSupported, unix.EOPNOTSUPP},
	} {
		if errors.Is(err, m.is) {
			return m.no
		}
	}
	if err != nil {
		return unix.EINVAL
	}
	return nil
}

func (c *conn) Close() error {
	c.a.do("Close", func() {})
	c.a.leave(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.objects); n > 0 {
		panic(fmt.Sprintf("hwtest: context closed with %d objects", n))
	}
	c.closed = true
	return unix.Close(c.asyncFD)
}

func (c *conn) Query() (attr ibv.DeviceAttr, err error) {
	c.a.do("Query", func() {
		a := c.a.dev.Attr()
		attr = ibv.DeviceAttr{
			Ports: 1, Vectors: 2, Atomic: true,
			MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxSGERead: a.MaxSGE, MaxCQE: 32767,
			MaxMR: a.MaxMR, MaxAH: a.MaxAH,
			MaxRDAtomicOut: a.MaxRDAtomic, MaxRDAtomicIn: a.MaxRDAtomic, MaxMRSize: a.MaxMRSize,
		}
	})
	if n := c.a.lib.MaxCQE; n > 0 {
		attr.MaxCQE = n
	}
	if change := c.a.lib.Attr; change != nil {
		change(&attr)
	}
	return attr, nil
}

// QueryPort implements ibv.Context. The table also has a hole, and the address as RoCE v1.
func (c *conn) QueryPort(port uint8) (p verbs.PortAttr, err error) {
	if port != 1 {
		return p, unix.EINVAL
	}
	c.a.do("QueryPort", func() { p = c.a.dev.Port() })
	if at := c.a.inSubnet(); at != nil {
		p.LinkLayer, p.LID, p.PKeys, p.UDPPort = verbs.LinkLayerInfiniBand, at.LID, len(at.PKeys), 0
		p.NeedsGRH = at.NeedsGRH
		p.GIDs = []verbs.GIDEntry{{GID: at.GID, Type: verbs.GIDTypeIB}}
		if at.Down {
			p.State = verbs.PortDown
		}
		return p, nil
	}
	v2 := p.GIDs[0]
	v2.Ifindex = 1
	v1 := v2
	v1.Type = verbs.GIDTypeRoCEv1
	p.GIDs, p.UDPPort = []verbs.GIDEntry{{}, v1, v2}, 0
	return p, nil
}

func (c *conn) QueryPKey(port uint8, index int) (uint16, error) {
	keys := []uint16{0xffff}
	if at := c.a.inSubnet(); at != nil {
		keys = at.PKeys
	}
	if port != 1 || index >= len(keys) {
		return 0, unix.EINVAL
	}
	return keys[index], nil
}

// GIDIndex is the index of an adapter's address in its table on Ethernet.
const GIDIndex = 2

// address converts an address in terms of this table, or of the subnet, to one of the device.
func (c *conn) address(a verbs.AHAttr) (verbs.AHAttr, error) {
	if at := c.a.inSubnet(); at != nil {
		if a.DLID == 0 || a.Port != 1 || at.NeedsGRH && (a.DGID == verbs.GID{}) {
			return a, unix.EINVAL
		}
		return verbs.AHAttr{DGID: verbs.GIDOf(c.a.lib.routed(a.DLID)), HopLimit: 64, UDPPort: c.a.port, Port: 1}, nil
	}
	if a.SGIDIndex != GIDIndex || a.Port != 1 {
		return a, unix.EINVAL
	}
	a.SGIDIndex, a.UDPPort = 0, c.a.port
	return a, nil
}

func (c *conn) AllocPD() (h ibv.PD, err error) {
	c.a.do("AllocPD", func() {
		var p verbs.PD
		if p, err = c.a.dev.AllocPD(); err == nil {
			h = enter[ibv.PD](c, p, nil, 0)
		}
	})
	return h, errno(err)
}

func (c *conn) DeallocPD(h ibv.PD) (err error) {
	c.a.do("DeallocPD", func() {
		if err = of[verbs.PD](c, h).Close(); err == nil {
			leave(c, h, nil)
		}
	})
	return errno(err)
}

// slow takes the time of creating an object, on the caller rather than the adapter.
func (c *conn) slow() { time.Sleep(c.a.lib.Create) }

func (c *conn) RegMR(pd ibv.PD, buf []byte, access verbs.Access) (h ibv.MR, lkey, rkey uint32, err error) {
	c.slow()
	c.a.do("RegMR", func() {
		var m verbs.MR
		if m, err = of[verbs.PD](c, pd).RegMR(buf, access); err == nil {
			h, lkey, rkey = enter[ibv.MR](c, m, nil, 0), m.LKey(), m.RKey()
		}
	})
	return h, lkey, rkey, errno(err)
}

func (c *conn) DeregMR(h ibv.MR) (err error) {
	c.a.do("DeregMR", func() {
		err = of[verbs.MR](c, h).Close()
		leave(c, h, nil)
	})
	return errno(err)
}

func (c *conn) CreateAH(pd ibv.PD, attr *verbs.AHAttr) (h ibv.AH, err error) {
	a, err := c.address(*attr)
	if err != nil {
		return 0, err
	}
	c.a.do("CreateAH", func() {
		var o verbs.AH
		if o, err = of[verbs.PD](c, pd).CreateAH(a); err == nil {
			h = enter[ibv.AH](c, o, nil, 0)
		}
	})
	return h, errno(err)
}

func (c *conn) DestroyAH(h ibv.AH) (err error) {
	c.a.do("DestroyAH", func() {
		err = of[verbs.AH](c, h).Close()
		leave(c, h, nil)
	})
	return errno(err)
}

func (c *conn) AsyncFD() int { return c.asyncFD }

func (c *conn) AsyncEvent() (ibv.Event, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		var b [8]byte
		_, _ = unix.Read(c.asyncFD, b[:])
		return ibv.Event{}, unix.EAGAIN
	}
	e := c.events[0]
	c.events = c.events[1:]
	return e, nil
}

// passOn forwards an event of the device if it concerns an object of this context.
func (c *conn) passOn(e verbs.AsyncEvent) {
	var key any
	switch {
	case e.CQ != nil:
		key = e.CQ
	case e.QP != nil:
		key = e.QP
	}
	c.mu.Lock()
	id, ok := c.ids[key]
	c.mu.Unlock()
	if ok {
		c.raise(ibv.Event{Type: e.Type, ID: id})
	}
}

func (c *conn) raise(e ibv.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.events = append(c.events, e)
	ring(c.asyncFD)
}

// ring makes a descriptor readable again, with a new edge for an edge-triggered poller.
func ring(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:])
}
