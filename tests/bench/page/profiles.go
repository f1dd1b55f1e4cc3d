package main

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/lab/bench/paper"
	"github.com/smcgw/smcgw/lab/bench/profile"
)

// most is how many items of a way are spoken of.
const most = 3

// profiles writes where processor time went, work by work, and what the largest items
// of each are.
func profiles(w *bytes.Buffer, r *paper.Report) error {
	if len(r.Profiles) == 0 {
		return nil
	}
	fmt.Fprintf(w, `
### Where the processor time goes

Each work once more, after the rounds, while perf looked at every processor about a thousand times a second: shares of the
time of all processors, in percent, by what the stack of each sample says (lab/bench/profile). "Busy" is all but idle, with what
it comes to for a byte, request or connection of that run, which is slower than a round. The largest three of each way, idle
aside, are named with whose time they were.
`)
	for _, work := range r.ProfiledWorks() {
		list := r.ProfilesOf(work)
		fmt.Fprintf(w, "\n**%s**\n\n", work)
		if err := r.ProfileMarkdown(w, work); err != nil {
			return err
		}
		fmt.Fprintln(w)
		for i := range list {
			largest(w, &list[i], r.Machine.CPUs)
		}
	}
	return nil
}

// largest writes a line about a way: its largest items, and whose time they are.
func largest(w *bytes.Buffer, p *paper.Profile, cpus int) {
	var items []string
	for _, part := range p.Largest(most) {
		text := fmt.Sprintf("%s %.1f %%", part.Item, part.Share*100)
		if cost, unit := p.Cost(part.Share, cpus); unit != "" {
			text += fmt.Sprintf(", %.3g %s", cost, unit)
		}
		items = append(items, text+" ("+whose(part.By)+")")
	}
	fmt.Fprintf(w, "- `%s`, %.4g %s: %s\n", p.Variant, p.Value, p.Unit, strings.Join(items, "; "))
}

// negligible is a share too small to show.
const negligible = 0.0005

// whose splits a share by role, in the order of the way of a byte.
func whose(by map[string]float64) string {
	var list []string
	for _, role := range profile.Roles {
		if share := by[string(role)]; share >= negligible {
			list = append(list, fmt.Sprintf("%s %.1f", role, share*100))
		}
	}
	if len(list) == 0 {
		return strings.Join(slices.Sorted(maps.Keys(by)), ", ")
	}
	return strings.Join(list, ", ")
}
