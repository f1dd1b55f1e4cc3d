package guardian

import (
	"os"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// mapHeartbeat is the heartbeat map of the programs.
type mapHeartbeat struct{ f *os.File }

// Read implements Heartbeat.
func (m mapHeartbeat) Read() (time.Duration, error) { return ebpf.ReadHeartbeat(m.f) }

// Stop implements Heartbeat.
func (m mapHeartbeat) Stop() error { return ebpf.StopHeartbeat(m.f) }
