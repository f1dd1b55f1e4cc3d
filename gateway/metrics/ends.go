package metrics

import (
	"slices"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// ends are all of the counted ends, and 0 for those that may come: an increase from a
// series that is not there is none to an alert.
func ends(counted []report.EndCount) []report.EndCount {
	counts := map[report.EndCount]uint64{}
	for _, side := range []report.Side{report.SideClient, report.SideServer} {
		counts[report.EndCount{Reason: string(report.EndClosed), Side: side}] = 0
		for _, r := range report.ResetReasons() {
			for _, by := range []string{report.DecidedLocal, report.DecidedRemote} {
				counts[report.EndCount{Reason: r.String(), Side: side, DecidedBy: by}] = 0
			}
		}
	}
	for _, n := range counted {
		count := n.Count
		n.Count = 0
		counts[n] += count
	}
	list := make([]report.EndCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b report.EndCount) int {
		return strings.Compare(a.Reason+string(a.Side)+a.DecidedBy, b.Reason+string(b.Side)+b.DecidedBy)
	})
	return list
}
