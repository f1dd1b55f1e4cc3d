package datagram

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

// flowTable holds the flows of an engine. Only the shard changes it, under mu, and only the
// shard reads it without mu; other goroutines read it under mu.
type flowTable struct {
	mu    sync.Mutex
	flows map[ebpf.Tuple]*flow
	count map[report.Carrier]report.FlowCount
}

// find returns the flow of a tuple, or nil.
func (t *flowTable) find(of ebpf.Tuple) *flow { return t.flows[of] }

func (t *flowTable) len() int { return len(t.flows) }

func (t *flowTable) add(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows == nil {
		t.flows, t.count = map[ebpf.Tuple]*flow{}, map[report.Carrier]report.FlowCount{}
	}
	t.flows[f.tuple] = f
	n := t.count[f.carrier]
	n.Now++
	n.Total++
	t.count[f.carrier] = n
}

func (t *flowTable) remove(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows[f.tuple] != f {
		return
	}
	delete(t.flows, f.tuple)
	n := t.count[f.carrier]
	n.Now--
	t.count[f.carrier] = n
}

// infos describes all flows.
func (t *flowTable) infos(now time.Time) []report.ConnInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]report.ConnInfo, 0, len(t.flows))
	for _, f := range t.flows {
		list = append(list, f.info(now))
	}
	return list
}

// countPeers adds the flows of each peer.
func (t *flowTable) countPeers(to map[netip.Addr]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tuple := range t.flows {
		to[tuple.Remote.Addr()]++
	}
}

// snapshot copies the numbers of flows by carrier.
func (t *flowTable) snapshot(to map[report.Carrier]report.FlowCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(to, t.count)
}
