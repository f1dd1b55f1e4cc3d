package metrics

import (
	"cmp"
	"maps"
	"slices"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// lacksRoom are the reasons that an alert counts connections by.
func lacksRoom() []negotiate.Reason {
	return []negotiate.Reason{negotiate.ReasonNoMemory, negotiate.ReasonFlowLimit, negotiate.ReasonRateLimit, negotiate.ReasonGatewayStale}
}

// fallbacks are all of the counted ones, and 0 for those that an alert is about, as [ends].
func fallbacks(counted []report.FallbackCount) []report.FallbackCount {
	s := report.Snapshot{Fallbacks: slices.Clone(counted)}
	for _, side := range []report.Side{report.SideClient, report.SideServer} {
		for _, r := range lacksRoom() {
			s.AddFallback(r, side, 0)
		}
	}
	return s.Fallbacks
}

// demotions are all of the counted ones, and 0 for those that may come, as [ends].
func demotions(counted []report.DemotionCount) []report.DemotionCount {
	counts := map[report.DemotionCount]uint64{}
	for _, by := range report.Carriers() {
		for _, cause := range report.DemotionCauses() {
			if by != report.CarrierRelay { // where they go
				counts[report.DemotionCount{Carrier: by, Reason: cause}] = 0
			}
		}
	}
	for _, n := range counted {
		counts[report.DemotionCount{Carrier: n.Carrier, Reason: n.Reason}] += n.Count
	}
	list := make([]report.DemotionCount, 0, len(counts))
	for n, count := range counts {
		n.Count = count
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b report.DemotionCount) int {
		return cmp.Or(cmp.Compare(a.Carrier, b.Carrier), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// handshakes are those of every carrier, empty where nothing was counted.
func handshakes(counted map[report.Carrier]report.HistogramSnapshot) map[report.Carrier]report.HistogramSnapshot {
	list := map[report.Carrier]report.HistogramSnapshot{}
	for _, by := range report.Carriers() {
		list[by] = report.NewSetupHistogram().Snapshot()
	}
	maps.Copy(list, counted)
	return list
}
