package gateway

import (
	"log/slog"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// SteeringConfig is what a configuration asks of the steering. Callers of RunOn open the
// steering with it.
func SteeringConfig(c config.Config, log *slog.Logger) ebpf.Config {
	return policy.Translate(c, false, log)
}
