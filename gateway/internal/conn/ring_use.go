package conn

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/report"
)

// ringUse is the fill of a connection's rings at the last look for stalls, which runs on the
// shard anyway, so that a scrape need not ask a shard. The zero value means that the
// connection has not been looked at yet.
type ringUse struct{ size, waiting, unacknowledged atomic.Uint64 }

// note is called on the shard. While one ring replaces another, both hold bytes: more may be
// waiting than the new one has room for, so the recorded size is at least the bytes waiting.
func (r *ringUse) note(size int, waiting, unacknowledged uint64) {
	r.size.Store(max(uint64(size), waiting))
	r.waiting.Store(waiting)
	r.unacknowledged.Store(unacknowledged)
}

func (r *ringUse) use() report.RingUse {
	return report.RingUse{Size: r.size.Load(), Waiting: r.waiting.Load(), Unacknowledged: r.unacknowledged.Load()}
}
