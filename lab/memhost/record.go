package memhost

import (
	"maps"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// Names of what the programs count (enum stat in maps.h).
const (
	statOffered           = "offered"
	statAccepted          = "accepted"
	statServed            = "served"
	statAnswered          = "answered"
	statReplaced          = "replaced"
	statSYNRetransmitDrop = "syn_retransmit_drop"
	statOutDrop           = "out_drop"
	statAppIngressDrop    = "app_ingress_drop"
	statLegIngressDrop    = "leg_ingress_drop"
	statWireIngressDrop   = "wire_ingress_drop"
	statSilentDrop        = "silent_drop"
	statOfferRefused      = "offer_refused"
	statReleasedDrop      = "released_drop"
	statReturnedDrop      = "returned_drop"
	statDeadDrop          = "dead_drop"
	statEventLost         = "event_lost"
	statNeutralised       = "neutralised"
	statStaleDeleted      = "stale_deleted"
	statStaleDropped      = "stale_dropped"
	statSYNDelivered      = "syn_delivered"
	statSYNReleased       = "syn_released"
	statSYNReturned       = "syn_returned"
)

// reasonNotOurs is no reason of docs/PROTOCOL.md: no listener here, so nothing of
// ours was decided. It is REASON_SLOTS of the programs.
const reasonNotOurs = 128

// eventLimit bounds the events that wait for the gateway.
const eventLimit = 8192

func (m *Model) count(stat string) { m.counts.Stats[stat]++ }

// dropped counts a packet that goes nowhere.
func (m *Model) dropped(stat string) verdict {
	m.count(stat)
	return drop
}

// emit never waits.
func (m *Model) emit(e ebpf.Event) {
	e.At = time.Now()
	select {
	case m.events <- e:
	default:
		m.count(statEventLost)
	}
}

// stayNative counts and reports that a connection is left to the kernel.
func (m *Model) stayNative(e ebpf.Event) {
	m.counts.Native[e.Side][e.Reason]++
	e.Kind = ebpf.EventNative
	m.emit(e)
}

// nativeFlow is stayNative for the connection of an entry.
func (m *Model) nativeFlow(f *ebpf.Flow, reason uint8) {
	m.stayNative(ebpf.Event{Tuple: f.Tuple, ISN: f.ISN, Reason: reason, Side: f.Side, State: f.State, Rule: f.Rule})
}

// replaced tells the gateway that the connection it works on is over; reason, if
// there is one, that it was recorded as native by that.
func (m *Model) replaced(f *ebpf.Flow, reason uint8) {
	m.count(statReplaced)
	m.emit(ebpf.Event{
		Tuple: f.Tuple, ISN: f.ISN, Kind: ebpf.EventReplaced, Reason: reason, Side: f.Side, State: f.State, Rule: f.Rule,
	})
}

// decided is what the policy decided by one rule.
type decided struct{ accelerate, pass uint64 }

// decide asks the policy and counts its answer, also where mode or heartbeat
// make it void.
func (m *Model) decide(q ebpf.Query) ebpf.Verdict {
	v := m.policy.Decide(q)
	n := m.decisions[v.Rule]
	if v.Action == ebpf.ActionPass {
		n.pass++
	} else {
		n.accelerate++
	}
	m.decisions[v.Rule] = n
	return v
}

// Counters implements host.Steering.
func (m *Model) Counters() (ebpf.Counters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := ebpf.Counters{Stats: maps.Clone(m.counts.Stats)}
	for side := range c.Native {
		c.Native[side] = maps.Clone(m.counts.Native[side])
	}
	for rule, n := range m.decisions {
		c.Decided = append(c.Decided, ebpf.Decided{Rule: rule, Accelerate: n.accelerate, Pass: n.pass})
	}
	return c, nil
}

// MapUsage implements host.Steering.
func (m *Model) MapUsage() ([]ebpf.MapUsage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return []ebpf.MapUsage{
		{Name: "flows", Entries: len(m.flows), Capacity: m.cfg.MaxFlows},
		{Name: "peers", Entries: len(m.peers)},
	}, nil
}
