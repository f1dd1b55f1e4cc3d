package verbstest

import "github.com/smcgw/smcgw/verbs"

var domainTests = []test{
	{"AllocPD", testAllocPD},
	{"InUse", testDomainInUse},
	{"ForeignLocalKey", testForeignLocalKey},
	{"ForeignReceiveKey", testForeignReceiveKey},
	{"ForeignRemoteKey", testForeignRemoteKey},
	{"ReadOnlyReceive", testReadOnlyReceive},
	{"Keys", testKeys},
	{"ClosedLocalRegion", testClosedLocalRegion},
	{"LocalRange", testLocalRange},
	{"GrantLater", testGrantLater},
}

// otherPD makes another protection domain; a device with one domain per peer refuses.
func (d *end) otherPD() verbs.PD {
	pd, err := d.Device.AllocPD()
	if err != nil {
		d.e.ErrorIs(err, verbs.ErrNotSupported)
		d.e.False(d.networked(), "a device with addresses has domains of its own")
		return nil
	}
	return own(d, pd)
}

// foreign returns a region of another protection domain, or nil if there is none.
func (d *end) foreign() verbs.MR {
	pd := d.otherPD()
	if pd == nil {
		return nil
	}
	mr, err := pd.AllocMR(4096, bothWrite)
	d.e.NoError(err)
	return own(d, mr)
}

func testAllocPD(e *env) {
	pd := e.a.otherPD()
	if pd == nil {
		return
	}
	mr, err := pd.AllocMR(100, verbs.AccessLocalWrite)
	e.NoError(err)
	e.ErrorIs(pd.Close(), verbs.ErrBusy)
	e.NoError(mr.Close())
	e.NoError(pd.Close())
	_, err = pd.AllocMR(100, 0)
	e.ErrorIs(err, verbs.ErrClosed)
}

// ibv_dealloc_pd(3): fails while the domain has objects.
func testDomainInUse(e *env) {
	e.ErrorIs(e.a.PD.Close(), verbs.ErrBusy)
	pd := e.a.otherPD()
	if pd == nil {
		return
	}
	makers := map[verbs.Ops]func() (interface{ Close() error }, error){
		verbs.OpSend: func() (interface{ Close() error }, error) {
			return pd.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap}))
		},
		verbs.OpUD: func() (interface{ Close() error }, error) {
			return pd.CreateAH(e.attr(e.a.Side, 0).AH)
		},
	}
	for op, create := range makers {
		if e.a.has(op) {
			c, err := create()
			e.NoError(err)
			e.ErrorIs(pd.Close(), verbs.ErrBusy, "%#x", op)
			e.NoError(c.Close())
		}
	}
	e.NoError(pd.Close())
}

// The keys of one protection domain are invalid for queue pairs of another (IBTA vol. 1, 10.2.3, C10-9): as a local key
// this is a local protection error,
func testForeignLocalKey(e *env) {
	mr := e.a.foreign()
	if mr == nil {
		return
	}
	e.connect()
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 0)
	wr.SGList = []verbs.SGE{sgeOf(mr, 8)}
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
}

// in a receive too, which the requester sees as a remote operation error,
func testForeignReceiveKey(e *env) {
	mr := e.b.foreign()
	if mr == nil {
		return
	}
	fill(e.a.bytes(0, 8), 1)
	e.connect()
	e.b.recv(1, sgeOf(mr, 100))
	e.a.post(e.a.send(1, 0, 8))
	e.Equal(verbs.WCLocProtErr, e.b.received(1).Status)
	e.Equal(verbs.WCRemOpErr, e.a.sent(1).Status)
	e.same(make([]byte, 8), mr.Bytes()[:8])
}

// and as a remote key it is a remote access error.
func testForeignRemoteKey(e *env) {
	mr := e.b.foreign()
	if mr == nil {
		return
	}
	fill(e.a.bytes(0, 8), 1)
	e.connect()
	e.refused(e.to(1, mr))
	e.same(make([]byte, 8), mr.Bytes()[:8])
}

// Receives need local write (IBTA vol. 1, 10.6.3.1); sends do not.
func testReadOnlyReceive(e *env) {
	mr := e.b.alloc(0)
	e.connect()
	wr := e.b.write(verbs.WRRDMAWrite, 0, e.a, 0, 0)
	wr.SGList = []verbs.SGE{sgeOf(mr, 8)}
	e.b.post(wr)
	e.b.good(1)
	if !e.a.has(verbs.OpSend) {
		return
	}
	fill(e.a.bytes(0, 8), 1)
	e.b.recv(1, sgeOf(mr, 100))
	e.a.post(e.a.send(1, 0, 8))
	e.Equal(verbs.WCLocProtErr, e.b.received(1).Status)
	e.Equal(verbs.WCRemOpErr, e.a.sent(1).Status)
	e.same(make([]byte, 8), mr.Bytes()[:8])
}

// Regions have different keys, and a closed region's keys are not reused soon.
func testKeys(e *env) {
	seen := map[uint32]bool{e.a.mr.RKey(): true}
	for range 50 {
		mr, err := e.a.PD.AllocMR(4096, bothWrite)
		e.NoError(err)
		e.False(seen[mr.RKey()])
		seen[mr.RKey()] = true
		e.Zero(mr.Addr()%8, "atomics need alignment")
		e.NoError(mr.Close())
	}
}

func testClosedLocalRegion(e *env) {
	e.connect()
	mr, err := e.a.PD.AllocMR(4096, bothWrite)
	e.NoError(err)
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 0)
	wr.SGList = []verbs.SGE{sgeOf(mr, 8)}
	e.NoError(mr.Close())
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
}

// A local range must lie within its region.
func testLocalRange(e *env) {
	for _, s := range []verbs.SGE{e.a.sge(regionSize-7, 8), e.a.sge(-1, 8), {LKey: e.a.mr.LKey(), Length: 8}, {Addr: ^uint64(0) - 3, LKey: e.a.mr.LKey(), Length: 8}} {
		e.renew()
		e.connect()
		wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 0)
		wr.SGList = []verbs.SGE{s}
		e.a.post(wr)
		e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
		e.Equal(verbs.QPSErr, e.a.qp.State())
	}
}

// A queue pair's rights can be granted and revoked later (table 91: RTS to RTS).
func testGrantLater(e *env) {
	e.a.init()
	e.NoError(verbs.Init(e.b.qp, 0))
	e.join()
	e.NoError(e.b.qp.Modify(&verbs.QPAttr{Access: bothWrite}, verbs.QPAttrAccess))
	e.settle()
	fill(e.a.bytes(0, 8), 1)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 0, e.b, 0, 8))
	e.a.good(1)
	e.NoError(e.b.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrAccess))
	e.settle()
	e.a.wcs = nil
	e.refusedWith(e.a.write(verbs.WRRDMAWrite, 1, e.b, 100, 8), verbs.WCRemInvReqErr)
}
