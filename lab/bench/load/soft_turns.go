package load

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// The turns of the clients: each is called by the loop until it closes done,
// once. What they keep is theirs until then.

// once closes done when the job is over or has failed.
func (l *link) once(done chan struct{}, over bool) {
	if over || l.err != nil {
		l.d.turn = nil
		close(done)
	}
}

// stream keeps depth messages of the job's size under way until the time is up,
// and then waits for the last of them.
func (l *link) stream(r *Result, done chan struct{}) func() bool {
	size, at, under := l.job.Size, 0, 0
	op := verbs.WRRDMAWrite
	if l.job.Verb == "send" {
		op = verbs.WRSend
	}
	end := time.Now().Add(time.Duration(l.job.Seconds * 1e9))
	var times sampler
	return func() bool {
		worked := l.poll(func(wc *verbs.WC) error {
			under--
			r.Messages++
			r.Bytes += int64(wc.ByteLen)
			return nil
		})
		now := time.Now()
		times.add(now, r.Bytes)
		over := now.After(end)
		for !over && under < l.job.Depth && l.err == nil {
			if at+size > regionSize {
				at = 0
			}
			l.sge[0] = verbs.SGE{Addr: l.mr.Addr() + uint64(at), Length: uint32(size), LKey: l.mr.LKey()}
			l.wr = verbs.SendWR{
				SGList: l.sge[:], Opcode: op, Flags: verbs.SendSignaled,
				RemoteAddr: l.remote.Addr + uint64(at), RKey: l.remote.RKey,
			}
			l.err = l.qp.PostSend(&l.wr)
			at, under, worked = at+size, under+1, true
		}
		r.Samples = times.list
		l.once(done, over && under == 0)
		return worked
	}
}

// rateBatch is how many small messages share a completion.
const rateBatch = 32

// rate posts small messages one by one.
func (l *link) rate(r *Result, done chan struct{}) func() bool {
	op := verbs.WRRDMAWrite
	if l.job.Verb == "send" {
		op = verbs.WRSend
	}
	under := 0
	end := time.Now().Add(time.Duration(l.job.Seconds * 1e9))
	return func() bool {
		worked := l.poll(func(*verbs.WC) error {
			under -= rateBatch
			r.Messages += rateBatch
			r.Bytes += rateBatch * int64(l.job.Size)
			return nil
		})
		over := time.Now().After(end)
		for !over && under+rateBatch <= l.job.Depth && l.err == nil {
			for i := range rateBatch {
				flags := verbs.SendFlags(0)
				if i == rateBatch-1 {
					flags = verbs.SendSignaled
				}
				if l.err = l.small(op, flags); l.err != nil {
					break
				}
			}
			under, worked = under+rateBatch, true
		}
		l.once(done, over && under == 0)
		return worked
	}
}

// ping posts a message when the answer to the one before has come.
func (l *link) ping(r *Result, done chan struct{}) func() bool {
	trips := make([]time.Duration, 0, l.job.Count)
	var began time.Time
	n := 0
	next := func() error {
		began = time.Now()
		return l.small(verbs.WRRDMAWriteWithImm, verbs.SendSignaled)
	}
	return func() bool {
		if n == 0 {
			n++
			l.err = next()
		}
		worked := l.poll(func(wc *verbs.WC) error {
			if wc.Opcode != verbs.WCRecvRDMAWithImm {
				return nil
			}
			if n > warmUp {
				trips = append(trips, time.Since(began))
			}
			if err := l.postRecv(); err != nil {
				return err
			}
			if len(trips) == l.job.Count {
				return nil
			}
			n++
			return next()
		})
		over := len(trips) == l.job.Count
		if over {
			r.Messages = int64(len(trips))
			r.quantiles(trips)
		}
		l.once(done, over)
		return worked
	}
}
