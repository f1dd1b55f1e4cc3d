package verbstest

import "github.com/smcgw/smcgw/verbs"

var mapperTests = []test{
	{"MapRemote", testMapRemote},
	{"Refused", testMapRefused},
	{"MappedWR", testMappedWR},
	{"ReadRemote", testReadRemote},
}

// mapper returns A's RemoteMapper, or nil if the device has none.
func (e *env) mapper() verbs.RemoteMapper {
	m, ok := e.a.qp.(verbs.RemoteMapper)
	e.Equal(e.a.Device.Attr().RemoteMapper, ok)
	return m
}

// Bytes written into the span are at the peer when the WRITE_WITH_IMM completes.
func testMapRemote(e *env) {
	m := e.mapper()
	if m == nil {
		return
	}
	e.connect()
	span, err := m.MapRemote(e.b.mr.RKey(), e.b.mr.Addr()+100, 5000)
	e.NoError(err)
	e.Len(span, 5000)
	e.Equal(5000, cap(span))
	fill(span, 5)
	e.b.recv(1)
	e.a.post(e.mapped(100, 5000))
	e.Equal(uint32(5000), e.b.received(1).ByteLen)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.Equal(fill(make([]byte, 5000), 5), e.b.mr.Bytes()[100:5100])
}

func (e *env) mapped(off, n int) *verbs.SendWR {
	wr := e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, off, n)
	wr.Flags = verbs.SendMapped
	wr.SGList = []verbs.SGE{{Addr: wr.RemoteAddr, Length: uint32(n), LKey: wr.RKey}}
	return wr
}

func testMapRefused(e *env) {
	m := e.mapper()
	if m == nil {
		return
	}
	_, err := m.MapRemote(e.b.mr.RKey(), e.b.mr.Addr(), 1)
	e.ErrorIs(err, verbs.ErrRemoteGone, "not connected")
	e.connect()
	key, addr := e.b.mr.RKey(), e.b.mr.Addr()
	for _, c := range []struct {
		key  uint32
		addr uint64
		n    int
	}{
		{key ^ 1, addr, 1},
		{0, addr, 1},
		{^uint32(0), addr, 1},
		{key, addr - 1, 1},
		{key, addr, regionSize + 1},
		{key, addr + regionSize, 1},
		{key, ^uint64(0), 2},
		{key, addr, -1},
	} {
		_, err := m.MapRemote(c.key, c.addr, c.n)
		e.ErrorIs(err, verbs.ErrAccess, "%+v", c)
	}
	e.NoError(e.b.qp.Close())
	e.settle()
	_, err = m.MapRemote(key, addr, 1)
	e.ErrorIs(err, verbs.ErrRemoteGone)
}

// SendMapped is allowed only if local and remote address are the same, with the same checks.
func testMappedWR(e *env) {
	if e.mapper() == nil {
		return
	}
	e.connect()
	wr := e.mapped(0, 10)
	wr.SGList[0].Addr++
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrInvalid)
	wr = e.mapped(0, regionSize+1)
	e.refused(wr)
}

// Bytes written in place can be read again until the queue pair is closed, even in ERR.
func testReadRemote(e *env) {
	m := e.mapper()
	if m == nil {
		return
	}
	r, ok := m.(verbs.RemoteReader)
	e.True(ok)
	e.connect()
	key, addr := e.b.mr.RKey(), e.b.mr.Addr()
	span, err := m.MapRemote(key, addr+100, 5000)
	e.NoError(err)
	fill(span, 7)
	_, err = r.ReadRemote(key^1, addr, 1)
	e.ErrorIs(err, verbs.ErrAccess)
	_, err = r.ReadRemote(key, addr, -1)
	e.ErrorIs(err, verbs.ErrAccess)
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	got, err := r.ReadRemote(key, addr+100, 5000)
	e.NoError(err)
	e.Equal(fill(make([]byte, 5000), 7), got)
	e.NoError(e.a.qp.Close())
	_, err = r.ReadRemote(key, addr+100, 5000)
	e.ErrorIs(err, verbs.ErrRemoteGone)
}
