package gateway

import (
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
)

// SteeringConfig is what a configuration asks of the steering, for those who
// open it themselves and call RunOn.
func SteeringConfig(c Config, log *slog.Logger) ebpf.Config { return steeringConfig(c, log) }
