package shm

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// held keeps the memory of a peer from being returned to the system until release.
func held(t testing.TB, p *Peer) (release func()) {
	gate := make(chan struct{})
	require.True(t, p.reclaim.Put(func() { <-gate }))
	release = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	return release
}

// settled waits until what peers have to return to the system is there: ranges, and
// then the mapping.
func settled(ps ...*Peer) {
	for range 2 {
		for _, p := range ps {
			done := make(chan struct{})
			if p.reclaim.Put(func() { close(done) }) {
				<-done
			}
		}
	}
}

// resident is the memory of a memfd.
func resident(t testing.TB, fd int) int64 {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Blocks * 512
}

// fill makes memory resident.
func fill(b []byte) {
	for i := range b {
		b[i] = 1
	}
}

// No call of a loop waits while a region is returned to the system, and the region counts
// as used until then.
func TestRegionReturnedBesideLoops(t *testing.T) {
	h := lone(t)
	release := held(t, h.pa)
	mr, err := h.pa.PD().AllocMR(4<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	fill(mr.Bytes())
	used, pages := h.pa.Stats().UsedBytes, resident(t, h.pa.memfd)
	require.NoError(t, mr.Close())
	h.progressB()
	require.Zero(t, h.pa.Stats().QuarantinedBytes)
	h.turn()
	small, err := h.pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	_, err = h.pa.PD().AllocMR(4<<20, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	require.Equal(t, used+4096, h.pa.Stats().UsedBytes)
	require.GreaterOrEqual(t, resident(t, h.pa.memfd), pages)

	release()
	settled(h.pa)
	require.Equal(t, used+4096-4<<20, h.pa.Stats().UsedBytes)
	require.LessOrEqual(t, resident(t, h.pa.memfd), pages-4<<20+1<<16)
	mr, err = h.pa.PD().AllocMR(4<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 4<<20), mr.Bytes())
	require.NoError(t, mr.Close())
	require.NoError(t, small.Close())
}

// No call of a loop waits while a peer is unmapped. The close of the device does.
func TestPeerUnmappedBesideLoops(t *testing.T) {
	h := lone(t)
	release := held(t, h.pa)
	require.NoError(t, h.pb.Close())
	<-h.pa.Done()
	h.progressA()
	require.NoError(t, h.qa.Close())
	eventually(t, patience, func() bool { return !referred(h.pa) }, "nothing refers to the memory")
	require.NotNil(t, h.pa.own.b)
	closed := make(chan error)
	go func() { closed <- h.pa.dev.Close() }()
	release()
	require.NoError(t, <-closed)
	require.Nil(t, h.pa.own.b)
	require.Equal(t, -1, h.pa.memfd)
	require.Zero(t, h.pa.dev.reclaim.Busy())
}

// Peers that have gone and are yet to be unmapped, because ranges of them are yet to be
// returned for instance, are bounded as those that are there.
func TestPeersUnmappedLate(t *testing.T) {
	for name, ranges := range map[string]bool{"mapping": false, "range": true} {
		t.Run(name, func(t *testing.T) {
			d, _ := listening(t, func(c *Config) { c.MaxPeers = 2 })
			var releases []func()
			for range 2 {
				p := offer(t, d)
				releases = append(releases, held(t, p))
				if ranges {
					mr, err := p.PD().AllocMR(4096, verbs.AccessLocalWrite)
					require.NoError(t, err)
					require.NoError(t, mr.Close())
				}
				require.NoError(t, p.Close())
				require.Equal(t, ranges, referred(p))
			}
			_, err := d.Offer()
			require.ErrorIs(t, err, verbs.ErrNoMemory)
			releases[1]() // one that is held up holds up no other
			eventually(t, patience, func() bool { return d.reclaim.Busy() == 1 }, "it is unmapped")
			require.NoError(t, offer(t, d).Close())
		})
	}
}

// referred tells whether something keeps the memory of a peer mapped.
func referred(p *Peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refs > 0
}

// What is closed after the device is unmapped by the caller, with the last of it.
func TestUnmappedBehindDevice(t *testing.T) {
	d, _ := listening(t)
	p := offer(t, d)
	var mrs [2]verbs.MR
	for i := range mrs {
		var err error
		mrs[i], err = p.PD().AllocMR(4096, verbs.AccessLocalWrite)
		require.NoError(t, err)
	}
	require.NoError(t, d.Close())
	require.NoError(t, mrs[0].Close())
	mrs[1].Bytes()[0] = 1
	require.Equal(t, uint64(4096), p.Stats().UsedBytes)
	require.NoError(t, mrs[1].Close())
	require.Nil(t, p.own.b)
	require.Equal(t, -1, p.memfd)
}

// The memory of warm blocks is there for regions at once, and zeroed.
func TestRegionInsteadOfWarmBlocks(t *testing.T) {
	d, _ := listening(t)
	p := offer(t, d)
	release := held(t, p)
	cq, err := d.CreateCQ(verbs.CQAttr{Depth: 16})
	require.NoError(t, err)
	var mrs []verbs.MR
	for _, n := range []int{4 << 20, 2 << 20, 1 << 20} {
		mr, err := p.PD().AllocMR(n, verbs.AccessLocalWrite)
		require.NoError(t, err)
		mrs = append(mrs, mr)
	}
	var qps []verbs.QP
	for range 30 {
		q, err := p.PD().CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1024}})
		require.NoError(t, err)
		fill(p.own.span(q.(*qp).blk.off+blkRing, ringEntrySize*1024))
		qps = append(qps, q)
	}
	_, err = p.PD().AllocMR(1<<20, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	for _, q := range qps {
		require.NoError(t, q.Close())
	}
	mr, err := p.PD().AllocMR(1<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 1<<20), mr.Bytes())
	release()
	for _, mr := range append(mrs, mr) {
		require.NoError(t, mr.Close())
	}
}
