package peers

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/gateway/process"
)

// RequireDescriptors returns an error if the limit on descriptors is too low to carry anything. Without this check the
// kernel's error would be about whatever happens to fail first.
func RequireDescriptors() error {
	if n := process.DescriptorLimit(); n <= process.OwnDescriptors {
		return fmt.Errorf("%w: %d descriptors; %d and one for each connection are needed (ulimit -n, LimitNOFILE of systemd)", errDescriptors, n, process.OwnDescriptors)
	}
	return nil
}

// errDescriptors means that the process may not have as many descriptors as a gateway needs.
var errDescriptors = errors.New("limit of open files too small")

// FlowsWithin returns how many flows, up to limit, this process has descriptors for. Each flow needs one for its app
// leg; finding none only after the application was connected would be an error of that connection.
func FlowsWithin(limit int) int {
	return max(0, min(limit, process.DescriptorLimit()-process.OwnDescriptors))
}
