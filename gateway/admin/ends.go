package admin

import (
	"slices"
	"strings"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// resets are the reasons for which carried connections are reset.
func resets() []negotiate.Reason {
	return []negotiate.Reason{
		negotiate.ReasonAppReset, negotiate.ReasonWireReset, negotiate.ReasonPeerDead, negotiate.ReasonDrained, negotiate.ReasonOff,
		negotiate.ReasonDeviceFailed, negotiate.ReasonLostBytes, negotiate.ReasonStalled, negotiate.ReasonProtocolError,
		negotiate.ReasonInternalError, negotiate.ReasonClientGone,
	}
}

// ends are all of the counted ends, and 0 for those that may come: an increase from a
// series that is not there is none to an alert.
func (s *Snapshot) ends() []EndCount {
	counts := map[EndCount]uint64{}
	for _, side := range []config.Side{config.SideClient, config.SideServer} {
		counts[EndCount{Reason: string(EndClosed), Side: side}] = 0
		for _, r := range resets() {
			for _, by := range []string{DecidedLocal, DecidedRemote} {
				counts[EndCount{Reason: r.String(), Side: side, DecidedBy: by}] = 0
			}
		}
	}
	for _, n := range s.Ends {
		count := n.Count
		n.Count = 0
		counts[n] += count
	}
	list := make([]EndCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b EndCount) int {
		return strings.Compare(a.Reason+string(a.Side)+a.DecidedBy, b.Reason+string(b.Side)+b.DecidedBy)
	})
	return list
}
