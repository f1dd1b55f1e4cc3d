package paper

import (
	"cmp"
	"slices"
)

// Profile says where the processors' time went while one work was done one way,
// in a run of its own that is no round.
type Profile struct {
	// Work and Variant are those of a [report.Series].
	Work    string `json:"work"`
	Variant string `json:"variant"`
	// Value is the first number of that run, while it was looked at, in Unit.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Samples is how often a processor was looked at.
	Samples int `json:"samples"`
	// Parts are what was seen, the largest first. Their shares add up to 1.
	Parts []Part `json:"parts"`
}

// Part is what went into one item.
type Part struct {
	// Item names it.
	Item string `json:"item"`
	// Share is that of the time of all processors, idle or not: 0 to 1. By
	// splits it by the part that a process has in the work.
	Share float64            `json:"share"`
	By    map[string]float64 `json:"by"`
	// Functions are the innermost functions seen most often, with their share in
	// percent.
	Functions []string `json:"functions"`
}

// IdleItem is the part that is no work.
const IdleItem = "idle"

// Share returns that of an item, 0 if it was not seen.
func (p *Profile) Share(item string) float64 {
	for _, part := range p.Parts {
		if part.Item == item {
			return part.Share
		}
	}
	return 0
}

// Busy is the share of the processors' time that was worked.
func (p *Profile) Busy() float64 { return 1 - p.Share(IdleItem) }

// Cost is what a share of that many processors comes to for a unit of the work:
// seconds for 10^9 bytes, microseconds for a request or a connection. The unit
// is empty where the value is no rate.
func (p *Profile) Cost(share float64, cpus int) (cost float64, unit string) {
	if p.Value <= 0 {
		return 0, ""
	}
	seconds := share * float64(cpus) // of each second
	switch p.Unit {
	case "Gbit/s":
		return seconds / (p.Value / 8), "s/GB"
	case "kreq/s":
		return seconds / (p.Value * 1e3) * 1e6, "µs"
	case "1/s":
		return seconds / p.Value * 1e6, "µs"
	}
	return 0, ""
}

// Largest returns the largest parts that are work.
func (p *Profile) Largest(n int) (list []Part) {
	for _, part := range p.Parts {
		if part.Item != IdleItem && len(list) < n {
			list = append(list, part)
		}
	}
	return list
}

// ProfiledWorks lists the works that were looked at, in the order of their first
// appearance.
func (r *Report) ProfiledWorks() (works []string) {
	for _, p := range r.Profiles {
		if !slices.Contains(works, p.Work) {
			works = append(works, p.Work)
		}
	}
	return works
}

// ProfilesOf lists the profiles of one work.
func (r *Report) ProfilesOf(work string) (list []Profile) {
	for _, p := range r.Profiles {
		if p.Work == work {
			list = append(list, p)
		}
	}
	return list
}

// Items lists the items of profiles, those of the largest share in any of them
// first, up to n; idle is always the last, and counts as one if it is there.
func Items(list []Profile, n int) (items []string) {
	most := map[string]float64{}
	for _, p := range list {
		for _, part := range p.Parts {
			most[part.Item] = max(most[part.Item], part.Share)
		}
	}
	_, idle := most[IdleItem]
	delete(most, IdleItem)
	for item := range most {
		items = append(items, item)
	}
	slices.SortFunc(items, func(a, b string) int {
		return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b))
	})
	if n <= 0 {
		return nil
	}
	if idle {
		items = append(items[:min(len(items), max(n-1, 0))], IdleItem)
	}
	return items[:min(len(items), n)]
}
