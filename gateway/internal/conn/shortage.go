package conn

import (
	"errors"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
)

// shortage returns the reason for an error of a leg that reports a lack of resources, or ReasonNone.
func shortage(err error) negotiate.Reason {
	if errors.Is(err, legs.ErrKeeper) {
		return negotiate.ReasonNoMemory
	}
	return carrier.Shortage(err)
}
