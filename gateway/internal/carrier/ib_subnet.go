package carrier

import (
	"context"
	"net/netip"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// subnet gives access to the InfiniBand subnets that the host is on.
type subnet interface {
	// gidOf returns the GID of the port of an IPoIB network device, or zero if it is not one.
	gidOf(ifindex int) (verbs.GID, error)
	// resolve resolves the path between two IPoIB addresses.
	resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)
}

// kernelSubnets asks the kernel of this host.
type kernelSubnets struct{}

// gidOf implements subnet.
func (kernelSubnets) gidOf(ifindex int) (verbs.GID, error) { return sysfs.IPoIB(ifindex) }

// resolve implements subnet.
func (kernelSubnets) resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	return rdmacm.Resolve(ctx, local, remote)
}
