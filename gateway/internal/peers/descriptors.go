package peers

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/gateway/process"
)

// RequireDescriptors refuses a limit under which nothing could be carried; without it the
// kernel's error is about whatever comes first.
func RequireDescriptors() error {
	if n := process.DescriptorLimit(); n <= process.OwnDescriptors {
		return fmt.Errorf("%w: %d descriptors; %d and one for each connection are needed (ulimit -n, LimitNOFILE of systemd)", errDescriptors, n, process.OwnDescriptors)
	}
	return nil
}

// errDescriptors means that the process may not have the descriptors that a gateway needs.
var errDescriptors = errors.New("limit of open files too small")

// FlowsWithin is how many of so many flows the process can have now: each needs a
// descriptor for its app leg, and one that turns out to be missing when the application
// has been connected is an error of that connection.
func FlowsWithin(limit int) int {
	return max(0, min(limit, process.DescriptorLimit()-process.OwnDescriptors))
}
