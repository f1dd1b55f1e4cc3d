package report

import (
	"slices"
	"sync"
)

// Tally accumulates the counters of parts that have ended. The zero value is ready to use.
type Tally struct {
	mu   sync.Mutex // guards past
	past Snapshot
}

// Sum sets the counters of s: those set by live plus those of parts that have ended. A part
// is counted exactly once, even while it is ending.
func (t *Tally) Sum(s *Snapshot, live func(*Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live(s)
	add(s, &t.past)
}

// End adds the counters of a part that is ending, which last sets. After that, the live
// function passed to Sum must no longer set them.
func (t *Tally) End(last func(*Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s Snapshot
	last(&s)
	add(&t.past, &s)
}

// add adds counters. The devices of from count as ended.
func add(to, from *Snapshot) {
	to.Panics += from.Panics
	addCounters(&to.SharesRefused, from.SharesRefused)
	addCounters(&to.Bounds.Wire, from.Bounds.Wire)
	addCounters(&to.UDP, from.UDP)
	addCounters(&to.Datagrams, from.Datagrams)
	for _, n := range from.CQErrors {
		i := slices.IndexFunc(to.CQErrors, func(c CQErrorCount) bool { return c.Carrier == n.Carrier && c.Status == n.Status })
		if i < 0 {
			to.CQErrors = append(to.CQErrors, n)
			continue
		}
		to.CQErrors[i].Count += n.Count
	}
	for _, d := range slices.Concat(from.Ended, from.Devices) {
		i := slices.IndexFunc(to.Ended, func(e DeviceInfo) bool { return e.Name == d.Name })
		if i < 0 {
			i = len(to.Ended)
			to.Ended = append(to.Ended, DeviceInfo{Name: d.Name, Carrier: d.Carrier})
		}
		addCounters(&to.Ended[i].Counters, d.Counters)
	}
}

// devicesMost bounds the remembered names of devices: those of adapters are chosen by the
// host, which can always have new ones.
const devicesMost = 256

// PastDevices accumulates the counters of devices that have ended, by name. The zero value is
// ready to use.
type PastDevices struct {
	mu   sync.Mutex // guards past
	past map[string]map[string]uint64
}

// Sum adds to the counters of a device those of ended devices with its name.
func (t *PastDevices) Sum(d *DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addCounters(&d.Counters, t.past[d.Name])
}

// End adds the counters of a device that is ending. Sum must not be called for it after that.
func (t *PastDevices) End(d DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past == nil || t.past[d.Name] == nil && len(t.past) >= devicesMost {
		t.past = map[string]map[string]uint64{}
	}
	past := t.past[d.Name]
	addCounters(&past, d.Counters)
	t.past[d.Name] = past
}
