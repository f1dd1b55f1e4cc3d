package ebpf

import (
	"errors"
	"fmt"

	bpf "github.com/cilium/ebpf"
)

// statNames are the names of enum stat in maps.h, in its order.
var statNames = [...]string{
	"offered", "accepted", "served", "replaced", "syn_retransmit_drop", "out_drop",
	"app_ingress_drop", "app_egress_drop", "leg_ingress_drop", "leg_egress_drop", "wire_ingress_drop", "released_drop", "returned_drop",
	"dead_drop", "event_lost", "neutralised", "neutralise_failed", "icmp_steered",
	"stale_deleted", "redirect_failed", "syn_delivered", "syn_released", "syn_returned",
	"stale_dropped",
	"dgram_steered", "dgram_delivered", "dgram_released", "dgram_unknown_drop",
	"dgram_fragmented", "dgram_asked", "dgram_table_full", "offer_refused", "probe_held",
	"answered", "silent_drop",
}

// reasonSlots is REASON_SLOTS of maps.h.
const reasonSlots = 128

// ruleSlots is RULE_SLOTS of maps.h.
const ruleSlots = MaxRules + 1

// Decided counts the decisions of the policy by one rule.
type Decided struct {
	// Rule is the index of the rule, or NoRule.
	Rule int
	// Accelerate and Pass count connections, regardless of what became of them.
	Accelerate, Pass uint64
}

// Counters are the counts since Open.
type Counters struct {
	// Native counts connections that were left native, and Datagrams tuples of UDP, by side and reason.
	Native, Datagrams [2]map[uint8]uint64
	// Decided has the rules that have made decisions.
	Decided []Decided
	// Stats has the other counters of the programs by name: offered (SYNs recorded), accepted (SYN-ACKs with accept),
	// served (offered SYNs given to netstack), replaced, event_lost, neutralised, the *_drop and others.
	Stats map[string]uint64
}

// Counters reads the counters.
func (d *Datapath) Counters() (Counters, error) {
	c := Counters{Stats: make(map[string]uint64, len(statNames))}
	if err := d.enter(); err != nil {
		return c, err
	}
	defer d.leave()
	native, err := sumCPUs(d.objs.Native)
	if err != nil {
		return c, err
	}
	for slot, counts := range []*map[uint8]uint64{&c.Native[0], &c.Native[1], &c.Datagrams[0], &c.Datagrams[1]} { // as SIDE_DATAGRAM of maps.h says
		*counts = map[uint8]uint64{}
		for reason, n := range native[slot*reasonSlots:][:reasonSlots] {
			if n > 0 {
				(*counts)[uint8(reason)] = n
			}
		}
	}
	if c.Decided, err = d.decided(); err != nil {
		return c, err
	}
	stats, err := sumCPUs(d.objs.Stats)
	if err != nil {
		return c, err
	}
	for i, name := range statNames {
		c.Stats[name] = stats[i]
	}
	if d.counting {
		return c, nil
	}
	if c.Stats[queueDrop], err = d.queueDrops(d.appIndex); err != nil {
		return c, err
	}
	c.Stats[wireQueueDrop], err = d.queueDrops(d.wireIndex)
	return c, err
}

// Names of the counters of what user space read too slowly: datagrams from the app TUN, packets for netstack from the
// wire TUN.
const (
	queueDrop     = "dgram_queue_drop"
	wireQueueDrop = "wire_queue_drop"
)

// queueDrops returns how many packets did not fit the queue of a TUN.
func (d *Datapath) queueDrops(index int) (uint64, error) {
	l, err := d.nl.LinkByIndex(index)
	if err != nil {
		return 0, fmt.Errorf("tun %d: %w", index, err)
	}
	if s := l.Attrs().Statistics; s != nil {
		return s.TxDropped, nil
	}
	return 0, nil
}

// decided reads the decisions by rule.
func (d *Datapath) decided() (list []Decided, err error) {
	n, err := sumCPUs(d.objs.Decided)
	if err != nil {
		return nil, err
	}
	for slot := range ruleSlots {
		r := Decided{Rule: ruleIndex(uint8(slot)), Accelerate: n[slot], Pass: n[ruleSlots+slot]}
		if r.Accelerate+r.Pass > 0 {
			list = append(list, r)
		}
	}
	return list, nil
}

// sumCPUs returns the sum over all CPUs of every counter of a per-CPU array. There are hundreds, so it reads them with
// one call.
func sumCPUs(m *bpf.Map) ([]uint64, error) {
	cpus, err := bpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	keys := make([]uint32, m.MaxEntries())
	perCPU := make([]uint64, len(keys)*cpus)
	n, err := m.BatchLookup(new(bpf.MapBatchCursor), keys, perCPU, nil)
	if n < len(keys) { // all of them come with an error, too: that there are no more
		return nil, fmt.Errorf("%d of %d counters: %w", n, len(keys), err)
	}
	sums := make([]uint64, len(keys))
	for i, key := range keys {
		for _, v := range perCPU[i*cpus:][:cpus] {
			sums[key] += v
		}
	}
	return sums, nil
}

// MapUsage is the fill level of a map.
type MapUsage struct {
	Name    string
	Entries int
	// Capacity is the number of entries that fit. 0 means that the oldest are evicted, so that a full map is no
	// problem.
	Capacity int
}

// MapUsage walks the bounded maps and counts their entries.
func (d *Datapath) MapUsage() ([]MapUsage, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	var out []MapUsage
	for _, m := range []struct {
		name string
		m    *bpf.Map
	}{
		{"flows", d.objs.Flows},
		{"peers", d.objs.Peers},
		{"passed", d.objs.Passed},
		{"seen", d.objs.Seen},
		{"compared", d.objs.Compared},
		{"own", d.objs.Own},
		{"dgrams", d.objs.Datagrams},
		{"dgram_natives", d.objs.DatagramNatives},
		{"dgram_peers", d.objs.DatagramPeers},
		{"dgram_asked", d.objs.DatagramAsked},
		{"devices", d.objs.Devices},
		{"lpm4", d.objs.LPM4},
		{"lpm6", d.objs.LPM6},
		{"ports", d.objs.Ports},
		{"uids", d.objs.UIDs},
		{"cgroups", d.objs.Cgroups},
	} {
		n, err := countKeys(m.m)
		if err != nil {
			return out, fmt.Errorf("map %s: %w", m.name, err)
		}
		use := MapUsage{Name: m.name, Entries: n}
		if m.m.Type() != bpf.LRUHash {
			use.Capacity = int(m.m.MaxEntries())
		}
		out = append(out, use)
	}
	return out, nil
}

// countKeys walks the keys of a map. Deletions may make the walk start over, so it stops at the capacity.
func countKeys(m *bpf.Map) (int, error) {
	key, next := make([]byte, m.KeySize()), make([]byte, m.KeySize())
	err := m.NextKey(nil, next)
	n := 0
	for err == nil && n < int(m.MaxEntries()) {
		n++
		copy(key, next)
		err = m.NextKey(key, next)
	}
	if err != nil && !errors.Is(err, bpf.ErrKeyNotExist) {
		return n, err
	}
	return n, nil
}
