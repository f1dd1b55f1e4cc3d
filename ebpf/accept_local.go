package ebpf

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// changedProtocol is the protocol of our IPv4 local route where loAcceptLocal was
// off before us. So whoever cleans up behind a gateway that was killed knows what
// to restore: the mark lives and dies with the namespace whose setting it is.
const changedProtocol netlink.RouteProtocol = 83

// changed reports whether a gateway that is there, or was killed, has changed the
// setting.
func (r *routing) changed() (bool, error) {
	routes, err := r.nl.RouteListFiltered(unix.AF_INET, &netlink.Route{Protocol: changedProtocol},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL) // of any table
	if err != nil {
		return false, fmt.Errorf("local routes: %w", err)
	}
	return len(routes) > 0, nil
}

// restoreAcceptLocal switches the setting off again, unless there is another
// gateway in the namespace, which needs it and will do so.
func (r *routing) restoreAcceptLocal() error {
	links, err := r.nl.LinkList()
	if err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, devicePrefix) && name != r.cfg.appName() && name != r.cfg.wireName() {
			return nil
		}
	}
	_, err = writeSysctl(loAcceptLocal, "0")
	return err
}
