package tally

import (
	"sync"

	"github.com/smcgw/smcgw/gateway/report"
)

// devicesMost bounds the names of devices: those of adapters are the host's, which may always
// have new ones.
const devicesMost = 256

// Devices are the counters of devices that have ended, by name. The zero value is ready to
// use.
type Devices struct {
	mu   sync.Mutex // guards past
	past map[string]map[string]uint64
}

// Sum adds to the counters of a device those of its name that have ended.
func (t *Devices) Sum(d *report.DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d.Counters = sum(d.Counters, t.past[d.Name])
}

// End takes in the counters of a device. Sum must not be called for it after that.
func (t *Devices) End(d report.DeviceInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past == nil || t.past[d.Name] == nil && len(t.past) >= devicesMost {
		t.past = map[string]map[string]uint64{}
	}
	t.past[d.Name] = sum(t.past[d.Name], d.Counters)
}
