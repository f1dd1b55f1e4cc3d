package broker

import (
	"time"

	"github.com/smcgw/smcgw/inprocess"
)

// Limits bound what the broker keeps and hands out. 0 means the default.
type Limits struct {
	Processes        int           // connected clients; 4096
	ProcessesPerUser int           // 1024
	Asks             int           // ends waiting for the other end; 16384
	AsksPerUser      int           // 8192
	Owed             int           // answers that the programs of one user do not take; 8192
	Conns            int           // promoted, or ended while a process has their memory; 65536, two descriptors each
	ConnsPerUser     int           // 32768
	ConnsPerCgroup   int           // 32768
	Memory           int64         // bytes reserved by connections; 256 GiB: sparse, so what could be touched
	MemoryPerUser    int64         // three quarters of Memory
	Share            int64         // a connection reserves at most 1/Share of what remains, or the smallest ring; 4096
	Wait             time.Duration // how long an end waits for the other; 60 s
	Runs             int           // runs whose sums are kept; as many as Processes
}

func defaultTo[T int | int64 | time.Duration](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

func (l Limits) withDefaults() Limits {
	defaultTo(&l.Processes, 4096)
	defaultTo(&l.ProcessesPerUser, 1024)
	defaultTo(&l.Asks, 16384)
	defaultTo(&l.AsksPerUser, 8192)
	defaultTo(&l.Owed, 8192)
	defaultTo(&l.Conns, 65536)
	defaultTo(&l.ConnsPerUser, 32768)
	defaultTo(&l.ConnsPerCgroup, 32768)
	defaultTo(&l.Memory, 256<<30)
	defaultTo(&l.MemoryPerUser, l.Memory/4*3)
	defaultTo(&l.Share, 4096)
	defaultTo(&l.Wait, time.Minute)
	defaultTo(&l.Runs, l.Processes)
	return l
}

// reservation chooses the largest ring whose connection takes no more than its share of what remains, so rings become
// smaller as the memory is used up. The smallest ring is granted as long as it fits at all.
func reservation(remains, share int64) (order uint32, bytes int64, ok bool) {
	order = inprocess.OrderWithin(remains/share, inprocess.OrderMax)
	bytes = inprocess.PairSize(order)
	return order, bytes, bytes <= remains
}
