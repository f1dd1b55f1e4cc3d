package gateway

import (
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// SteeringConfig is what a configuration asks of the steering, for callers that
// open it themselves and call RunOn.
func SteeringConfig(c config.Config, log *slog.Logger) ebpf.Config { return policy.Translate(c, log) }
