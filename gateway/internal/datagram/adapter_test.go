package datagram

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
)

// adapter is a network whose device behaves as an adapter does: calls take as long as the test
// wants, which none of a shard may wait for.
type adapter struct {
	network
	t     testing.TB
	shard func() *loop.Shard // of the engine

	mu    sync.Mutex               // guards everything below
	gates map[string]chan struct{} // calls by name that wait for the test
	fails map[string]error         // of calls by name
	calls map[string]int           // that have begun
	ended map[string]int
}

// adapt makes adapters of the networks of host i from the next start on.
func (h *hosts) adapt(i int) *adapter {
	a := &adapter{t: h.t, gates: map[string]chan struct{}{}, fails: map[string]error{}, calls: map[string]int{}, ended: map[string]int{}}
	h.stop(i)
	a.shard = func() *loop.Shard { return h.g[i].shards[0] }
	h.edit = func(j int, list []Provider) {
		if j == i {
			a.network = list[0].(network)
			list[0] = a
		}
	}
	return a
}

// hold keeps the calls of a name waiting until release is called, or the test has ended.
func (a *adapter) hold(name string) (release func()) {
	gate := make(chan struct{})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gates[name] = gate
	release = sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.gates, name)
		close(gate)
	})
	a.t.Cleanup(release)
	return release
}

// call is one call of the adapter.
func (a *adapter) call(name string) error {
	a.mu.Lock()
	gate, err := a.gates[name], a.fails[name]
	a.calls[name]++
	a.mu.Unlock()
	if gate != nil {
		<-gate
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended[name]++
	return err
}

// fail has the calls of a name fail.
func (a *adapter) fail(name string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails[name] = err
}

// begun and over are how many calls of a name have begun, and have returned.
func (a *adapter) begun(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[name]
}

func (a *adapter) over(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended[name]
}

// turns requires that the shard of the engine goes on.
func (a *adapter) turns() {
	a.t.Helper()
	turned := make(chan struct{})
	a.shard().Post(func() { close(turned) })
	select {
	case <-turned:
	case <-time.After(patience):
		require.Fail(a.t, "the shard waits for the adapter")
	}
}

func (a *adapter) DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error) {
	d, err := a.network.DatagramsAt(local, remote)
	if err == nil {
		d.Device = adapterDevice{d.Device, a}
		below := d.Hold
		d.Hold = func(s *loop.Shard, need int) (*loop.Queue, func(), error) {
			q, _, err := below(s, need)
			return q, func() { _ = a.call("leave") }, errors.Join(err, a.call("Hold"))
		}
	}
	return d, err
}

type adapterDevice struct {
	verbs.Device
	a *adapter
}

func (d adapterDevice) AllocPD() (verbs.PD, error) {
	if err := d.a.call("AllocPD"); err != nil {
		return nil, err
	}
	p, err := d.Device.AllocPD()
	return adapterPD{p, d.a}, err
}

func (p adapterPD) Close() error {
	_ = p.a.call("PD.Close")
	return p.PD.Close()
}

type adapterPD struct {
	verbs.PD
	a *adapter
}

func (p adapterPD) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	_ = p.a.call("CreateAH")
	ah, err := p.PD.CreateAH(attr)
	return &adapterAH{ah, p.a}, err
}

type adapterAH struct {
	verbs.AH
	a *adapter
}

func (h *adapterAH) Close() error {
	_ = h.a.call("AH.Close")
	return h.AH.Close()
}

func (p adapterPD) RegMR(b []byte, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegMR(b, access)
	return &adapterMR{mr, p.a}, err
}

type adapterMR struct {
	verbs.MR
	a *adapter
}

func (m *adapterMR) Close() error {
	_ = m.a.call("MR.Close")
	return m.MR.Close()
}

func (p adapterPD) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	if err := p.a.call("CreateQP"); err != nil {
		return nil, err
	}
	qp, err := p.PD.CreateQP(attr)
	return &adapterQP{qp, p.a}, err
}

// adapterQP is a queue pair that any goroutine may close when it is detached: what the device below wants done
// by the shard is done there.
type adapterQP struct {
	verbs.QP
	a *adapter
}

func (q *adapterQP) Detach() { q.a.call("Detach") }

func (q *adapterQP) Attach() {}

func (q *adapterQP) PostSend(wr *verbs.SendWR) error {
	if wr.Opcode == verbs.WRSendWithImm && wr.ImmData == controlImm(controlNative) {
		_ = q.a.call("NATIVE")
	}
	below := *wr
	if h, ok := wr.AH.(*adapterAH); ok {
		below.AH = h.AH
	}
	return q.QP.PostSend(&below)
}

func (q *adapterQP) Close() (err error) {
	_ = q.a.call("QP.Close")
	q.a.shard().Call(func() { err = q.QP.Close() })
	return err
}
