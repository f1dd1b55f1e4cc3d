package main

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// endsEvery is how often the histories of the gateways are read.
	endsEvery = 300 * time.Millisecond
	// historySize is the number of connections in a history.
	historySize = 1024
)

// pasts counts how connections ended at every gateway: a multiset, for comparing runs of one seed with two programs.
type pasts struct {
	// Missed counts readings of a full history in which nothing was known: ends may be missing from the counts.
	Missed int `json:"missed"`
	// Late counts those of them for which this program had no processor in time.
	Late int `json:"late"`
	// Hosts has the number of connections of each kind of end by host.
	Hosts map[string]map[string]int `json:"ends"`

	seen map[*site]map[past]bool // what has been counted and may be read again
	last map[*site]time.Time     // when the latest reading began
}

// past identifies a connection that ended, in whichever process reports it.
type past struct {
	side, local, remote string
	at                  time.Time
}

// kindOf returns the kind of end as which a connection is counted: side, carrier, end, and the reasons that it has.
func kindOf(c *report.ConnInfo) string {
	words := []string{c.Proto, string(c.Side), string(c.Carrier), string(c.End)}
	for _, w := range []struct{ name, value string }{
		{"reason", c.Reason}, {"by", c.DecidedBy}, {"demoted", c.Demoted},
	} {
		if w.value != "" {
			words = append(words, w.name+"="+w.value)
		}
	}
	return strings.Join(words, " ")
}

// read adds what has ended at a host since the last reading. Beside the gateway that serves there may be one that was
// taken over.
func (e *pasts) read(ctx context.Context, at *site) {
	seen, now := e.seen[at], map[past]bool{}
	known, before := false, e.last[at]
	e.last[at] = time.Now()
	for _, socket := range []string{at.socket(), at.socket() + ".old"} {
		client := admin.NewClient(socket)
		list, err := client.Conns(ctx, report.ConnQuery{Closed: true, All: true})
		client.Close()
		if err != nil {
			continue // it does not exist, or is about to be replaced
		}
		for i := range list.Conns {
			c := &list.Conns[i]
			if c.End == "" {
				continue // All also lists what is carried
			}
			p := past{string(c.Side), c.Local.String(), c.Remote.String(), c.EndedAt}
			now[p], known = true, known || seen[p]
			if !seen[p] {
				seen[p] = true
				e.Hosts[at.Name][kindOf(c)]++
			}
		}
	}
	if len(now) >= historySize && !known {
		e.Missed++
		if time.Since(before) > 3*endsEvery {
			e.Late++
		}
	}
	maps.DeleteFunc(seen, func(p past, _ bool) bool { return !now[p] && time.Since(p.at) > patience })
}

// watchEnds reads the histories until stop is called, which returns the line with the counts.
func (s *soak) watchEnds() (stop func() string) {
	e := &pasts{Hosts: map[string]map[string]int{}, seen: map[*site]map[past]bool{}, last: map[*site]time.Time{}}
	for _, at := range s.capable {
		e.Hosts[at.Name], e.seen[at] = map[string]int{}, map[past]bool{}
	}
	ended := make(chan struct{})
	var joined sync.WaitGroup
	joined.Go(func() {
		tick := time.NewTicker(endsEvery)
		defer tick.Stop()
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			case <-tick.C:
			}
			for _, at := range s.capable {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				e.read(ctx, at)
				cancel()
			}
		}
	})
	return func() string {
		close(ended)
		joined.Wait()
		b, err := json.Marshal(e)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
}
