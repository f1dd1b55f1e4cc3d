package verbstest

import (
	"errors"

	"github.com/smcgw/smcgw/verbs"
)

var ahTests = where((*env).useAH, []test{
	{"Create", testAH},
	{"Missing", testAHMissing},
	{"ClosedAfterPost", testAHClosedAfterPost},
	{"ClosedBeforePost", testAHClosedBeforePost},
	{"ForeignDomain", testAHForeignDomain},
	{"ForeignDevice", testAHForeignDevice},
	{"Invalid", testAHInvalid},
	{"Loopback", testAHLoopback},
})

// useAH is use for UD queue pairs; a device without them must also refuse address handles.
func (e *env) useAH() bool {
	if e.use(verbs.QPTUD) {
		return true
	}
	_, err := e.a.PD.CreateAH(e.attr(e.a.Side, 0).AH)
	e.ErrorIs(err, verbs.ErrNotSupported)
	return false
}

// ibv_create_ah(3): a handle names a destination, and several may name the same.
func testAH(e *env) {
	for range 10 {
		ah, err := e.a.PD.CreateAH(e.attr(e.a.Side, 0).AH)
		e.NoError(err)
		own(e.a, ah)
	}
}

// A datagram without a handle is not sent.
func testAHMissing(e *env) {
	e.connect()
	wr := e.a.send(1, 0, 8)
	wr.AH = nil
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrInvalid)
}

// Posted messages are sent even if their handle is closed; see verbs.AH.
func testAHClosedAfterPost(e *env) {
	e.connect()
	for i := range 10 {
		ah, err := e.a.PD.CreateAH(e.attr(e.a.Side, 0).AH)
		e.NoError(err)
		e.b.recv(uint64(i), e.b.room(0, 100))
		wr := e.a.send(uint64(i), 0, 8)
		wr.AH = ah
		e.a.post(wr)
		e.NoError(ah.Close())
		e.NoError(ah.Close(), "closing again")
	}
	e.b.received(10)
	e.a.good(10)
}

// unfit posts a datagram with an invalid handle. It must be refused immediately, or complete with a local queue pair
// operation error (IBTA vol. 1, 11.4.1.1 and 10.10.2.2 allow both).
func (e *env) unfit(ah verbs.AH, why error) {
	e.t.Helper()
	wr := e.a.send(1, 0, 8)
	wr.AH = ah
	if err := e.a.qp.PostSend(wr); err != nil {
		e.True(errors.Is(err, why) || errors.Is(err, verbs.ErrInvalid), "%v", err)
		return
	}
	e.Equal(verbs.WCLocQPOpErr, e.a.sent(1).Status)
}

func testAHClosedBeforePost(e *env) {
	e.connect()
	ah, err := e.a.PD.CreateAH(e.attr(e.a.Side, 0).AH)
	e.NoError(err)
	e.NoError(ah.Close())
	e.unfit(ah, verbs.ErrClosed)
}

// Handle and queue pair must be of one protection domain (IBTA vol. 1, 10.2.3, C10-10).
func testAHForeignDomain(e *env) {
	pd := e.a.otherPD()
	if pd == nil {
		return
	}
	ah, err := pd.CreateAH(e.attr(e.a.Side, 0).AH)
	e.NoError(err)
	own(e.a, ah)
	e.connect()
	e.unfit(ah, verbs.ErrInvalid)
}

func testAHForeignDevice(e *env) {
	e.connect()
	e.unfit(e.b.handle(), verbs.ErrInvalid)
}

// A source address that the port does not have, or a port that does not exist.
func testAHInvalid(e *env) {
	if !e.a.networked() {
		return
	}
	for _, change := range []func(*verbs.AHAttr){
		func(a *verbs.AHAttr) { a.SGIDIndex = uint8(len(e.a.Device.Port().GIDs)) },
		func(a *verbs.AHAttr) { a.DGID = verbs.GID{} },
		func(a *verbs.AHAttr) { a.FlowLabel = 1 << 20 },
		func(a *verbs.AHAttr) { a.Port = 2 },
	} {
		attr := e.attr(e.a.Side, 0).AH
		change(&attr)
		_, err := e.a.PD.CreateAH(attr)
		e.ErrorIs(err, verbs.ErrInvalid, "%+v", attr)
	}
}

// A port reaches its own queue pairs, the sending one too (IBTA vol. 1, 10.2.6:
// loopback).
func testAHLoopback(e *env) {
	if !e.a.networked() {
		return
	}
	e.connect()
	ah, err := e.a.PD.CreateAH(e.attr(e.b.Side, 0).AH) // as B names A
	e.NoError(err)
	own(e.a, ah)
	e.a.recv(1, e.a.room(1000, 100))
	fill(e.a.bytes(0, 8), 1)
	wr := e.a.send(0, 0, 8)
	wr.AH, wr.RemoteQPN = ah, e.a.qp.Num()
	e.a.post(wr)
	e.Equal(e.a.qp.Num(), e.a.received(1).SrcQP)
	e.same(e.a.bytes(0, 8), e.a.bytes(1000+grhSize, 8))
}
