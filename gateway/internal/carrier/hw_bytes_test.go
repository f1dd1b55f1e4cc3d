package carrier

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
)

// libraryHost is a host with one adapter of a fake library: the accounting of
// verbs/hw is the real one, and what takes an adapter its time is done beside the shards.
type libraryHost struct {
	lib     *hwtest.Library
	adapter string
}

func (h libraryHost) List(verbs.LinkLayer) ([]string, error) {
	return []string{h.adapter + "/1"}, nil
}

func (h libraryHost) Open(_ string, vectors int) (AdapterPort, error) {
	dev, err := hw.Open(hw.Config{
		Adapter: h.adapter, Vectors: vectors, BoundCQs: true, Library: h.lib, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return hwPort{dev}, nil
}

func (libraryHost) Changed() (<-chan struct{}, func()) { return nil, func() {} }

// newLibrarySides opens the carriers of two gateways on adapters of one fake library.
func newLibrarySides(t *testing.T) (sides [2]*side) {
	t.Helper()
	lib, err := hwtest.New(len(sides))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lib.Close()) })
	lib.Create = 200 * time.Microsecond
	for i := range sides {
		adapter := fmt.Sprintf("fake%d", i)
		addr := lib.Addr(adapter)
		cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceHW}}
		cfg.Limits.HandshakeTimeout = patience // for calls of adapters
		sides[i] = openSideOn(t, cfg, func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil }, nil, libraryHost{lib, adapter})
	}
	return sides
}

// streamer is a connection that sends bytes that its offsets tell, and compares what it
// gets. It belongs to its shard.
type streamer struct {
	fakeUser
	link     *Link
	rnd      *rand.Rand
	own      uint64 // what both directions are made of
	peer     uint64
	size     uint64 // bytes to send, and to get
	reads    uint64 // bytes to get until it stops to read
	failure  error
	finished chan struct{}
	once     sync.Once
}

// byteAt is the byte of a direction at an offset.
func byteAt(seed, offset uint64) byte {
	x := (offset/8 + 1) * (seed | 1)
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return byte(x >> (8 * (offset % 8)))
}

func (u *streamer) Owner() loop.Owner { return u }

func (u *streamer) Completed(ev rsocket.Events, ok bool) {
	u.fakeUser.Completed(ev, ok)
	u.work()
}

func (u *streamer) Broken() { u.done(u.link.EP.Err()) }

func (u *streamer) done(err error) {
	u.once.Do(func() {
		u.failure = err
		close(u.finished)
	})
}

// work reads and writes what can be read and written.
func (u *streamer) work() {
	if u.link == nil || !u.link.Carries() {
		return
	}
	ep := u.link.EP
	for ep.ConsumedOffset() < u.reads {
		b := ep.ReadSpan()
		if len(b) == 0 {
			break
		}
		b = b[:min(len(b), 1+u.rnd.IntN(40_000))]
		if err := compare(b, u.peer, ep.ConsumedOffset()); err != nil {
			u.done(err)
			return
		}
		if err := ep.Consume(len(b)); err != nil {
			u.done(err)
			return
		}
	}
	for ep.SentOffset() < u.size {
		b := ep.WriteSpan()
		if len(b) == 0 {
			break
		}
		b = b[:min(len(b), int(u.size-ep.SentOffset()), 1+u.rnd.IntN(9_000))]
		for i := range b {
			b[i] = byteAt(u.own, ep.SentOffset()+uint64(i))
		}
		if err := ep.Commit(len(b)); err != nil {
			u.done(err)
			return
		}
	}
	if err := ep.Err(); err != nil {
		u.done(err)
	}
	if ep.ConsumedOffset() >= u.reads && ep.SentOffset() == u.size {
		u.done(nil)
	}
}

// compare tells where bytes differ from those of a direction from an offset on.
func compare(b []byte, seed, offset uint64) error {
	for i := range b {
		if want := byteAt(seed, offset+uint64(i)); b[i] != want {
			return fmt.Errorf("byte %d is %#x, not %#x", offset+uint64(i), b[i], want)
		}
	}
	return nil
}

// talk makes a connection, has both its ends send and get bytes, and ends it. A broken one
// ends at some moment, by either side: then the tail of each direction is what the other
// end has not consumed.
func talk(sides [2]*side, seed uint64, breaks bool) error {
	rnd := rand.New(rand.NewPCG(seed, 1))
	size := 1 + rnd.Uint64N(1_500_000)
	var users [2]*streamer
	for i := range users {
		users[i] = &streamer{
			rnd: rand.New(rand.NewPCG(seed, uint64(i))), own: seed*2 + uint64(i), peer: seed*2 + uint64(1-i),
			size: size, reads: size, finished: make(chan struct{}),
		}
		if breaks && rnd.IntN(2) == 0 {
			users[i].reads = rnd.Uint64N(size)
		}
	}
	links, err := meetStreamers(sides, users)
	if err != nil {
		return err
	}
	for i, s := range sides {
		s.on(func() {
			users[i].link = links[i]
			links[i].Begin()
		})
	}
	for i, s := range sides {
		s.on(users[i].work)
	}
	if breaks {
		return breakLinks(sides, users, rnd)
	}
	var failure error
	for _, u := range users {
		select {
		case <-u.finished:
		case <-time.After(patience):
			failure = fmt.Errorf("connection %d stands still", seed)
		}
	}
	for i, s := range sides {
		s.on(func() {
			if failure == nil && users[i].failure != nil {
				failure = fmt.Errorf("connection %d, side %d: %w", seed, i, users[i].failure)
			}
			links[i].Close()
		})
	}
	return failure
}

// breakLinks ends both links at a moment, and compares what has to be sent again.
func breakLinks(sides [2]*side, users [2]*streamer, rnd *rand.Rand) (failure error) {
	time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Microsecond)
	first := rnd.IntN(2)
	if rnd.IntN(2) == 0 {
		sides[first].on(func() {
			failure = users[first].link.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
		})
		time.Sleep(time.Duration(rnd.IntN(2_000)) * time.Microsecond)
	}
	var consumed [2]uint64
	var sent, written [2]func()
	for _, i := range []int{first, 1 - first} {
		sides[i].on(func() {
			u := users[i]
			sides[i].Shards[0].Collect()
			u.work()
			if err := u.failure; err != nil && !isLoss(err) && failure == nil {
				failure = fmt.Errorf("side %d: %w", i, err)
			}
			consumed[i] = u.link.EP.ConsumedOffset()
			sent[i], written[i] = u.link.Depart()
		})
	}
	for i := range sides {
		sides[i].on(func() {
			ep := users[i].link.EP
			at := consumed[1-i]
			if ep.FreedOffset() > at && failure == nil {
				failure = fmt.Errorf("side %d has freed %d bytes of which %d were consumed", i, ep.FreedOffset(), at)
			}
			for failure == nil && at < ep.SentOffset() {
				b := ep.Tail(at)
				if len(b) == 0 {
					failure = fmt.Errorf("side %d has no byte %d of %d", i, at, ep.SentOffset())
					return
				}
				if err := compare(b, users[i].own, at); err != nil {
					failure = fmt.Errorf("tail of side %d: %w", i, err)
				}
				at += uint64(len(b))
			}
		})
		sent[i]()
		written[i]()
	}
	return failure
}

// isLoss tells the loss of a queue pair from bytes that are wrong.
func isLoss(err error) bool { return errors.Is(err, rsocket.ErrConnection) }

// meetStreamers makes and proves the links of a connection.
func meetStreamers(sides [2]*side, users [2]*streamer) (links [2]*Link, err error) {
	l, offer, err := sides[0].hw.Offer(sides[0].request(users[0], sides[1].addr))
	if err != nil {
		return links, err
	}
	links[0] = l
	answer, to, err := sides[1].answer(sides[1].hw, sides[1].request(users[1], sides[0].addr), offer, &negotiate.Proposal{})
	if err != nil {
		return links, err
	}
	links[1] = answer
	warm, err := sides[0].prove(l, to)
	for deadline := time.Now().Add(patience); err == nil && !warm && users[0].proved.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			err = fmt.Errorf("no proof: %w", errPanicked)
		}
	}
	sides[0].on(l.Proved)
	return links, err
}

// TestHWBytes: connections come and go while others carry, and each gets its bytes. What
// takes an adapter its time is done beside the shards: it must not touch what those do.
func TestHWBytes(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		t.Run(fmt.Sprintf("breaks %v", breaks), func(t *testing.T) {
			sides := newLibrarySides(t)
			const atOnce, each = 8, 6
			var wg sync.WaitGroup
			failures := make(chan error, atOnce)
			for w := range uint64(atOnce) {
				wg.Go(func() {
					for i := range uint64(each) {
						if err := talk(sides, w*each+i+1, breaks); err != nil {
							failures <- err
							return
						}
					}
				})
			}
			wg.Wait()
			close(failures)
			for err := range failures {
				t.Error(err)
			}
			for _, s := range sides {
				eventually(t, s.isEmpty, "the memory is back")
			}
		})
	}
}

// TestHWTakesWhatComesEarly: the other side may send as soon as the queue pair is
// connected, before the shard hears of that. Nothing of it is lost.
func TestHWTakesWhatComesEarly(t *testing.T) {
	sides := newLibrarySides(t)
	c := meet(t, sides, hwOf)
	var err error
	sides[1].on(func() {
		ep := c.link[1].EP
		err = ep.Commit(copy(ep.WriteSpan(), "early"))
	})
	require.NoError(t, err)
	connected, release := make(chan error, 1), make(chan struct{})
	sides[0].Shards[0].Post(func() { c.link[0].Connect(c.to, func(err error) { connected <- err }) })
	sides[0].Shards[0].Post(func() { <-release })
	eventually(t, func() (placed bool) {
		sides[1].on(func() {
			require.NoError(t, c.link[1].EP.Keepalive())
			placed = c.link[1].EP.Placed()
		})
		return placed
	}, "the adapter has it, and the shard has not looked")
	close(release)
	require.NoError(t, <-connected)
	eventually(t, func() bool { return c.user[0].read.Load() > 0 }, "the bytes come")
	sides[0].on(func() { require.Equal(t, "early", string(c.link[0].EP.ReadSpan())) })
	c.close(sides)
}
