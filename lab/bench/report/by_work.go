package report

import "slices"

// worked is what belongs to a work.
type worked interface{ work() string }

func (s Series) work() string  { return s.Work }
func (p Profile) work() string { return p.Work }

// worksOf lists the works of a list in the order of their first appearance.
func worksOf[T worked](list []T) (works []string) {
	for _, one := range list {
		if !slices.Contains(works, one.work()) {
			works = append(works, one.work())
		}
	}
	return works
}

// only lists what belongs to one work.
func only[T worked](list []T, work string) (some []T) {
	for _, one := range list {
		if one.work() == work {
			some = append(some, one)
		}
	}
	return some
}
