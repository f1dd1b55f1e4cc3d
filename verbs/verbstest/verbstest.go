package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// Side is one of the two devices of a test.
type Side struct {
	Device verbs.Device
	PD     verbs.PD
	Driver verbs.Driver // of vector 0, driven by the suite
}

// Pair is two devices that reach each other. Attr returns what a queue pair of
// the side connects with: the address of the other side's queue pair dest, the
// timers. nil means verbs.ConnectAttr.
type Pair struct {
	A, B Side
	Attr func(side *Side, dest uint32) verbs.QPAttr
}

// Run runs the suite. open is called for every test and cleans up by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) *Pair) {
	for _, g := range []struct {
		name  string
		tests []test
	}{
		{"State", stateTests},
		{"Write", writeTests},
		{"Send", sendTests},
		{"RNR", rnrTests},
		{"Error", errorTests},
		{"CQ", cqTests},
		{"Limit", limitTests},
		{"Mapper", mapperTests},
	} {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) { c.run(newEnv(t, open(t))) })
			}
		})
	}
}

type test struct {
	name string
	run  func(e *env)
}

// env is a pair with one connected queue pair on each side.
type env struct {
	*require.Assertions
	t    testing.TB
	pair *Pair
	a, b *end
}

// end is a side with a queue pair, its CQs and a region both may write.
type end struct {
	*Side
	e        *env
	scq, rcq verbs.CQ
	qp       verbs.QP
	mr       verbs.MR
	wcs      []verbs.WC // completions of the send CQ
	recvs    []verbs.WC // completions of the receive CQ
}

const regionSize = 1 << 20

var testCap = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}

func newEnv(t testing.TB, p *Pair) *env {
	e := &env{Assertions: require.New(t), t: t, pair: p}
	e.a, e.b = e.newEnd(&p.A), e.newEnd(&p.B)
	return e
}

func (e *env) newEnd(s *Side) *end {
	d := &end{Side: s, e: e}
	var err error
	d.scq, err = s.Device.CreateCQ(verbs.CQAttr{Depth: 64})
	e.NoError(err)
	d.rcq, err = s.Device.CreateCQ(verbs.CQAttr{Depth: 64})
	e.NoError(err)
	d.mr, err = s.PD.AllocMR(regionSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	e.NoError(err)
	d.qp = d.newQP(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.t.Cleanup(func() {
		e.NoError(d.qp.Close())
		e.NoError(d.mr.Close())
	})
	return d
}

// newQP creates a queue pair on the end's CQs unless attr has others.
func (d *end) newQP(attr verbs.QPInitAttr) verbs.QP {
	attr.Type = verbs.QPTRC
	if attr.SendCQ == nil {
		attr.SendCQ = d.scq
	}
	if attr.RecvCQ == nil {
		attr.RecvCQ = d.rcq
	}
	qp, err := d.PD.CreateQP(&attr)
	d.e.NoError(err)
	return qp
}

// replace gives the end another queue pair.
func (d *end) replace(attr verbs.QPInitAttr) {
	d.e.NoError(d.qp.Close())
	d.qp = d.newQP(attr)
}

func (e *env) attr(s *Side, dest uint32) verbs.QPAttr {
	if e.pair.Attr != nil {
		return e.pair.Attr(s, dest)
	}
	return verbs.ConnectAttr(dest)
}

const bothWrite = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// connect brings both queue pairs to RTS; change may alter B's attributes and A's.
func (e *env) connect(change ...func(*verbs.QPAttr)) {
	e.NoError(verbs.Init(e.a.qp, bothWrite))
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	e.join(change...)
}

func (e *env) join(change ...func(*verbs.QPAttr)) {
	b := e.attr(e.b.Side, e.a.qp.Num())
	a := e.attr(e.a.Side, e.b.qp.Num())
	for _, f := range change {
		f(&a)
		f(&b)
	}
	e.NoError(verbs.Connect(e.b.qp, b))
	e.NoError(verbs.Connect(e.a.qp, a))
}

// turn drives both sides once and collects completions.
func (e *env) turn() bool {
	worked := false
	for _, d := range []*end{e.a, e.b} {
		w, _ := d.Driver.Progress(time.Now())
		n := len(d.wcs) + len(d.recvs)
		d.wcs = d.poll(d.scq, d.wcs)
		d.recvs = d.poll(d.rcq, d.recvs)
		d.Driver.Flush()
		worked = worked || w || n != len(d.wcs)+len(d.recvs)
	}
	return worked
}

func (d *end) poll(cq verbs.CQ, wcs []verbs.WC) []verbs.WC {
	var buf [4]verbs.WC
	for {
		n, err := cq.Poll(buf[:])
		d.e.NoError(err)
		wcs = append(wcs, buf[:n]...)
		if n < len(buf) {
			return wcs
		}
	}
}

// until drives both sides until cond holds.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !cond(); {
		if !e.turn() {
			e.True(time.Now().Before(deadline), "never: %s", what)
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// settle drives both sides until nothing moves for a while.
func (e *env) settle() {
	for quiet := 0; quiet < 20; quiet++ {
		if e.turn() {
			quiet = 0
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// sent and received wait for the n-th completion and return it.
func (d *end) sent(n int) verbs.WC {
	d.e.t.Helper()
	d.e.until("send completion", func() bool { return len(d.wcs) >= n })
	return d.wcs[n-1]
}

func (d *end) received(n int) verbs.WC {
	d.e.t.Helper()
	d.e.until("receive completion", func() bool { return len(d.recvs) >= n })
	return d.recvs[n-1]
}

// sge names a part of the end's region.
func (d *end) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: d.mr.Addr() + uint64(off), Length: uint32(n), LKey: d.mr.LKey()}
}

// recv posts a receive.
func (d *end) recv(id uint64, list ...verbs.SGE) {
	d.e.t.Helper()
	d.e.NoError(d.qp.PostRecv(&verbs.RecvWR{WRID: id, SGList: list}))
}

// write makes a WRITE of a part of the region to the same place at the peer.
func (d *end) write(op verbs.WROpcode, id uint64, to *end, off, n int) *verbs.SendWR {
	return &verbs.SendWR{
		WRID: id, Opcode: op, SGList: []verbs.SGE{d.sge(off, n)}, ImmData: uint32(id) | 0x80000000,
		RemoteAddr: to.mr.Addr() + uint64(off), RKey: to.mr.RKey(),
	}
}

func (d *end) post(wr *verbs.SendWR) {
	d.e.t.Helper()
	d.e.NoError(d.qp.PostSend(wr))
}

func fill(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}
