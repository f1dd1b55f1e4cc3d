package guardian

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// mapHeartbeat is the heartbeat map of the programs.
type mapHeartbeat struct{ f *fdpass.File }

// Read implements Heartbeat.
func (m mapHeartbeat) Read() (time.Duration, error) { return ebpf.ReadHeartbeat(m.f) }

// Stop implements Heartbeat.
func (m mapHeartbeat) Stop() error { return ebpf.StopHeartbeat(m.f) }
