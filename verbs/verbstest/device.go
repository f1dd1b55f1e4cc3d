package verbstest

import (
	"slices"

	"github.com/smcgw/smcgw/verbs"
)

var deviceTests = []test{
	{"Attributes", testDeviceAttributes},
	{"Port", testPort},
	{"AtTheLimits", testAtTheLimits},
	{"Drive", testDrive},
	{"Closed", testDeviceClosed},
}

// ibv_query_device(3): each limit of what the device supports is positive.
func testDeviceAttributes(e *env) {
	for _, d := range e.ends() {
		a := d.Device.Attr()
		for _, n := range []int{a.Vectors, a.MaxQP, a.MaxQPWR, a.MaxSGE, a.MaxCQE, a.MaxMR} {
			e.Positive(n)
		}
		e.Positive(a.MaxMRSize)
		e.Positive(a.MaxMsgSize)
		e.NotZero(a.Ops&verbs.OpRDMAWrite, "without it the device is of no use")
		for op, limits := range map[verbs.Ops][]int{
			verbs.OpRDMARead: {a.MaxRDAtomic}, verbs.OpAtomic: {a.MaxRDAtomic},
			verbs.OpUD: {a.MaxAH},
		} {
			for _, n := range limits {
				if a.Ops&op != 0 {
					e.Positive(n, "%#x", op)
				}
			}
		}
	}
	e.NotEmpty(e.a.Device.Name())
}

// ibv_query_port(3).
func testPort(e *env) {
	p := e.a.Device.Port()
	e.Equal(verbs.PortActive, p.State)
	e.NotZero(p.ActiveMTU.Bytes())
	e.LessOrEqual(p.ActiveMTU, p.MaxMTU)
	if e.a.networked() {
		e.True(slices.ContainsFunc(p.GIDs, func(g verbs.GIDEntry) bool { return !g.Empty() }), "all holes")
		e.NotEqual(verbs.LinkLayerUnspecified, p.LinkLayer)
		e.NotZero(p.UDPPort)
		p.GIDs[0].GID[0] ^= 1
		e.NotEqual(p.GIDs[0], e.a.Device.Port().GIDs[0], "the slice is the caller's")
	}
}

// What the attributes promise can be created.
func testAtTheLimits(e *env) {
	a := e.a.Device.Attr()
	qp := e.a.newQP(verbs.QPInitAttr{Cap: verbs.QPCap{
		MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: a.MaxSGE, MaxRecvSGE: a.MaxSGE, MaxInline: a.MaxInline,
	}})
	e.NoError(qp.Close())
	qp = e.a.newQP(verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: a.MaxQPWR, MaxRecvWR: a.MaxQPWR, MaxSendSGE: 1, MaxRecvSGE: 1}})
	e.NoError(qp.Close())
	cq := e.a.newCQ(a.MaxCQE)
	e.NoError(cq.Close())
}

// nowhere is a poller that must not be called.
type nowhere struct{ e *env }

func (n nowhere) Add(int) error    { n.e.Fail("an fd was added"); return nil }
func (n nowhere) Remove(int) error { return nil }

// A vector has one driver at a time; see verbs.Device.
func testDrive(e *env) {
	d := e.a.Device
	_, err := d.Drive(0, nowhere{e})
	e.ErrorIs(err, verbs.ErrBusy)
	for _, vector := range []int{-1, d.Attr().Vectors} {
		_, err = d.Drive(vector, nowhere{e})
		e.ErrorIs(err, verbs.ErrInvalid)
	}
}

// After Close the device creates nothing any more; its objects can still be closed.
func testDeviceClosed(e *env) {
	e.connect()
	d := e.a.Device
	e.NoError(e.a.Driver.Close())
	e.NoError(d.Close())
	e.NoError(d.Close(), "closing again")
	_, err := d.CreateCQ(verbs.CQAttr{Depth: 1})
	e.ErrorIs(err, verbs.ErrClosed)
	_, err = d.Drive(0, nowhere{e})
	e.ErrorIs(err, verbs.ErrClosed)
	_, err = e.a.PD.AllocMR(4096, verbs.AccessLocalWrite)
	e.Error(err)
	_, err = e.a.PD.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap}))
	e.Error(err)
}
