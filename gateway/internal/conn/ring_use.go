package conn

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/report"
)

// ringUse is the fill of a connection's rings at the last look for stalls, which is on the
// shard anyway: a scrape asks no shard. The zero value is that of a connection that no look
// has met.
type ringUse struct{ size, waiting, unacknowledged atomic.Uint64 }

// note is called by the shard. While a ring takes the place of another, both hold bytes: more
// may wait than the new one has room for, and the size is at least that.
func (r *ringUse) note(size int, waiting, unacknowledged uint64) {
	r.size.Store(max(uint64(size), waiting))
	r.waiting.Store(waiting)
	r.unacknowledged.Store(unacknowledged)
}

func (r *ringUse) use() report.RingUse {
	return report.RingUse{Size: r.size.Load(), Waiting: r.waiting.Load(), Unacknowledged: r.unacknowledged.Load()}
}
