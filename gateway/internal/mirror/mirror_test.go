package mirror_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// TestBytesBothWays: all sizes, rings that are full and empty, readers and writers that pause.
func TestBytesBothWays(t *testing.T) {
	for name, kind := range kinds {
		for _, tc := range []struct {
			name    string
			order   uint32
			largest int
			total   uint64
			pause   time.Duration
		}{
			{"bulk", 20, 99991, 32 << 20, 0},
			{"small ring", 16, 99991, 16 << 20, 0},
			{"small pieces", 18, 300, 1 << 20, 0},
			{"pauses", 16, 9999, 1 << 20, 3 * time.Millisecond},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				sides := connect(t, newGateways(t), kind, tc.order)
				pause := func() {
					if tc.pause > 0 && rand.IntN(10) == 0 {
						time.Sleep(rand.N(tc.pause))
					}
				}
				require.NoError(t, errors.Join(exchange(sides, tc.total, tc.largest, pause)...))
				for _, s := range sides {
					t.Log(s.Bells(), "bells,", s.Doorbells(), "doorbells")
					require.Equal(t, tc.total, s.lib.head)
					require.Equal(t, tc.total, s.lib.arrived())
				}
			})
		}
	}
}

// TestCarrierLost at any point: what has arrived is a prefix of what was written, of which the writer has the rest.
func TestCarrierLost(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			gws := newGateways(t)
			for range 15 {
				sides := connect(t, gws, kind, 16+rand.Uint32N(4))
				done := make(chan []error, 1)
				go func() { done <- exchange(sides, 1<<40, 50_000, func() {}) }()
				time.Sleep(rand.N(20 * time.Millisecond))
				first := rand.IntN(2)
				gws[first].prov[kind].breakLast()
				require.NotEqual(t, negotiate.ReasonProtocolError, expect(t, sides[first].lost, "loss of one"))
				gws[1-first].prov[kind].breakLast() // as the control connection has it
				expect(t, sides[1-first].lost, "loss of the other")
				require.NoError(t, errors.Join(expect(t, done, "end of the libraries")...))
				for i, s := range sides {
					peer := sides[1-i].lib
					require.NotZero(t, s.lib.flags()&inprocess.Gone)
					require.Equal(t, s.lib.arrived(), s.lib.tail)
					require.Equal(t, gws[i].prov[kind].last().EP.ReceivedOffset(), s.lib.arrived(), "all that has come is told")
					require.LessOrEqual(t, s.lib.arrived(), peer.head, "nothing is invented")
					require.LessOrEqual(t, peer.freed(), s.lib.tail, "what was not read is kept")
					require.LessOrEqual(t, peer.head-peer.freed(), peer.size)
				}
			}
		})
	}
}

// TestNonsense: a library that says what cannot be ends the carrier of its connection, and of no other.
func TestNonsense(t *testing.T) {
	for name, say := range map[string]func(l *library){
		"written too much": func(l *library) { l.says(inprocess.EndHead, l.head+l.size+1) },
		"unwritten":        func(l *library) { l.says(inprocess.EndHead, l.head-1) },
		"read too much":    func(l *library) { l.says(inprocess.EndTail, l.arrived()+1) },
		"unread":           func(l *library) { l.says(inprocess.EndTail, 1) },
		"opens nowhere": func(l *library) {
			word64(l.own, inprocess.EndTransitions+8).Store(1 << 63)
			l.says(inprocess.EndNx, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			gws := newGateways(t)
			bad, good := connect(t, gws, negotiate.CarrierSoft, 16), connect(t, gws, negotiate.CarrierSoft, 16)
			require.NoError(t, errors.Join(exchange(bad, 100_000, 9999, func() {})...))
			say(bad[0].lib)
			require.Equal(t, negotiate.ReasonProtocolError, expect(t, bad[0].lost, "loss"))
			require.NotZero(t, bad[0].lib.flags()&inprocess.Gone)
			require.Equal(t, [2]uint64{100_000, 0}, [2]uint64{bad[0].lib.arrived(), uint64(bad[1].lib.flags())})
			require.NoError(t, errors.Join(exchange(good, 1<<20, 9999, func() {})...))
		})
	}
}

// TestProcessEnds: what it has written comes, though the end is closed as soon as that is said, and then that it has ended;
// its socket is closed.
func TestProcessEnds(t *testing.T) {
	for name, kind := range kinds {
		for _, tc := range []struct {
			name    string
			total   uint64
			largest int
			before  bool // the peer is told before
		}{
			{"bulk", 4 << 20, 99991, false},
			{"bulk, told before", 4 << 20, 99991, true},
			{"more messages than credits", 3000, 2, true},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				sides := connect(t, newGateways(t), kind, 22)
				require.NoError(t, sides[0].send(tc.total, tc.largest, func() { time.Sleep(time.Microsecond) }))
				if tc.before {
					sides[1].PeerEnded(tc.total, 78)
				}
				word64(sides[0].lib.own, inprocess.EndGot).Store(78)
				word32(sides[0].lib.own, inprocess.EndFlags).Store(inprocess.Attached)
				sides[0].ProcessEnded()
				sides[0].lib.hangUp()
				fds := []unix.PollFd{{Fd: int32(sides[1].lib.sock), Events: unix.POLLRDHUP}}
				n, err := 0, error(unix.EINTR)
				for err == unix.EINTR { // poll() ends with any signal of Go's
					n, err = unix.Poll(fds, int(patience.Milliseconds()))
				}
				require.NoError(t, err)
				require.Equal(t, 1, n, "the kernel connection ends")
				require.Equal(t, uint32(inprocess.Attached), expect(t, sides[0].said, "last words").Flags)
				read := make(chan error, 1)
				go func() { read <- sides[1].receive(tc.total, 99991, func() {}) }()
				require.Equal(t, [2]uint64{tc.total, 78}, expect(t, sides[0].drained, "all is sent"))
				sides[0].Close(func() {})
				require.NoError(t, expect(t, read, "all is read"))
				if !tc.before {
					require.Zero(t, sides[1].lib.flags()&inprocess.Shut)
					sides[1].PeerEnded(tc.total, 78)
				}
				require.Eventually(t, func() bool { return sides[1].lib.flags()&inprocess.Shut != 0 }, patience, time.Millisecond)
				require.EqualValues(t, 78, word64(sides[1].lib.mirror, inprocess.EndGot).Load())
				require.NoError(t, sides[1].receive(1<<40, 99991, func() {}))
				require.Equal(t, tc.total, sides[1].lib.tail)
			})
		}
	}
}

// TestTailAtRest: once nothing happens any more, each library knows that the other has read all, whether that reads at
// once or after its gateway has left the end with its bell; while something happens nothing is said for that.
func TestTailAtRest(t *testing.T) {
	for name, kind := range kinds {
		for _, late := range []time.Duration{0, 2 * mirror.HotFor, 20 * mirror.HotFor} {
			t.Run(name+"/"+late.String(), func(t *testing.T) {
				sides := connect(t, newGateways(t), kind, 16)
				for range 20 {
					for i, s := range sides {
						peer := sides[1-i]
						total := s.lib.head + 1 + rand.Uint64N(1000)
						require.NoError(t, s.send(total, 300, func() {}))
						require.Eventually(t, func() bool { return peer.lib.arrived() == total }, patience, time.Millisecond/10)
						time.Sleep(late)
						require.NoError(t, peer.receive(total, 300, func() {}))
					}
					for _, s := range sides {
						require.Eventually(t, func() bool { return s.lib.freed() == s.lib.head }, patience, time.Millisecond/10)
					}
				}
			})
		}
	}
}

// TestTailAtEnd: what a library reads last is known at the peer when that hears of its end.
func TestTailAtEnd(t *testing.T) {
	for name, kind := range kinds {
		for how, end := range map[string]func(s *side) (over chan struct{}){
			"process": func(s *side) chan struct{} {
				over := make(chan struct{})
				go func() {
					<-s.drained
					close(over)
				}()
				s.ProcessEnded()
				return over
			},
			"settled": func(s *side) chan struct{} {
				over := make(chan struct{})
				s.Settle(func() { close(over) })
				return over
			},
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				gws := newGateways(t)
				for until := time.Now().Add(patience); ; {
					sides := connect(t, gws, kind, 16)
					a, b := sides[0], sides[1]
					require.NoError(t, errors.Join(exchange(sides, 1000, 100, func() {})...))
					require.NoError(t, a.send(1300, 300, func() {}))
					require.NoError(t, b.receive(1300, 300, func() {}))
					began := time.Now()
					gws[1].shard.Call(func() {}) // what is posted next is done in a turn that begins later
					expect(t, end(b), "end")
					if how == "settled" && time.Since(began) >= mirror.SettleFor { // it waits no longer, on however busy a machine
						require.True(t, time.Now().Before(until), "it does not settle by itself")
						continue
					}
					a.PeerEnded(1000, 0)
					require.Eventually(t, func() bool { return a.lib.flags()&inprocess.Shut != 0 }, patience, time.Millisecond/10)
					require.EqualValues(t, 1300, a.lib.freed())
					return
				}
			})
		}
	}
}

// TestSettleWithoutCarrier: nobody waits for a carrier that ends, or has ended.
func TestSettleWithoutCarrier(t *testing.T) {
	gws := newGateways(t)
	sides := connect(t, gws, negotiate.CarrierSoft, 16)
	a, b := sides[0], sides[1]
	require.NoError(t, a.send(100, 100, func() {}))
	require.Eventually(t, func() bool { return b.lib.arrived() == 100 }, patience, time.Millisecond/10)
	silent := make(chan struct{})
	gws[0].shard.Post(func() { <-silent })
	defer close(silent)
	require.NoError(t, b.receive(100, 100, func() {}))
	settled := make(chan string, 2)
	began := time.Now()
	gws[1].shard.Call(func() {}) // what is posted next is done in a turn that begins later
	b.Settle(func() { settled <- "with it" })
	gws[1].shard.Call(func() {})
	if early := len(settled); time.Since(began) < mirror.SettleFor { // otherwise it may have waited long enough
		require.Zero(t, early)
	}
	b.Lose()
	require.Equal(t, "with it", expect(t, settled, "settled"))
	b.Settle(func() { settled <- "without it" })
	require.Equal(t, "without it", expect(t, settled, "settled"))
}

// TestPeerEndsBefore: a peer that says that less was written than has come says nonsense.
func TestPeerEndsBefore(t *testing.T) {
	sides := connect(t, newGateways(t), negotiate.CarrierSoft, 16)
	require.NoError(t, errors.Join(exchange(sides, 1000, 100, func() {})...))
	sides[1].PeerEnded(999, 0)
	require.Equal(t, negotiate.ReasonProtocolError, expect(t, sides[1].lost, "loss"))
	require.Equal(t, uint32(inprocess.Gone), sides[1].lib.flags())
}

// TestPassedOn: what one library says beside its bytes is told to its owner, and what its owner says to the other, which
// wakes for it.
func TestPassedOn(t *testing.T) {
	sides := connect(t, newGateways(t), negotiate.CarrierSoft, 16)
	a, b := sides[0], sides[1]
	woken := make(chan error, 1)
	sleep := func() { // by itself
		b.lib.alone = true
		go func() { woken <- b.lib.sleep() }()
		require.Eventually(t, func() bool { return word32(b.lib.own, inprocess.EndArm).Load() != 0 }, patience, time.Millisecond)
	}

	a.lib.says(inprocess.EndFlags, inprocess.Attached|1<<30)
	require.Equal(t, mirror.Said{Flags: inprocess.Attached}, expect(t, a.said, "attached"))
	sleep()
	b.Tell(inprocess.Attached | inprocess.Gone) // which is not the peer's to say
	require.NoError(t, expect(t, woken, "sleeper"))
	require.Equal(t, uint32(inprocess.Attached), b.lib.flags())

	where := make(chan mirror.Opening, 1)
	a.lib.says(inprocess.EndKsent, 70)
	a.lib.says(inprocess.EndFlags, inprocess.Attached|inprocess.Asks)
	require.Equal(t, mirror.Said{Flags: inprocess.Attached | inprocess.Asks, Questions: 1}, expect(t, a.said, "asks"))
	asked := inprocess.Attached | inprocess.Asks | inprocess.Recall
	a.lib.says(inprocess.EndFlags, uint64(asked))
	require.Equal(t, mirror.Said{Flags: uint32(asked), Questions: 2}, expect(t, a.said, "asks again"))
	for _, answers := range []uint32{0, 1, 2} {
		a.TellOpening(mirror.Opening{Ksent: 40}, answers, false)
		a.Where(func(o mirror.Opening) { where <- o })
		require.Equal(t, mirror.Opening{Ksent: 70}, expect(t, where, "place"))
		require.Equal(t, answers == 2, a.lib.flags()&inprocess.Asks != 0, "an answer to an earlier question is none to this")
	}
	a.Where(func(o mirror.Opening) { where <- o })
	require.Equal(t, mirror.Opening{Ksent: 70}, expect(t, where, "place"))
	word64(a.lib.own, inprocess.EndTransitions+8).Store(54)
	a.lib.says(inprocess.EndNx, 1)
	opened := mirror.Opening{Opened: true, At: 54, Ksent: 70}
	require.Equal(t, opened, expect(t, a.said, "opened").Opening)
	sleep()
	b.TellOpening(opened, 0, false)
	require.NoError(t, expect(t, woken, "sleeper"))
	require.Equal(t, [3]uint64{1, 54, 70}, [3]uint64{
		uint64(word32(b.lib.mirror, inprocess.EndNx).Load()), word64(b.lib.mirror, inprocess.EndTransitions+8).Load(), word64(b.lib.mirror, inprocess.EndKsent).Load(),
	})
}

// TestAfterLoss: a library whose carrier has ended may still ask where its peer is, and hears when that has left. The
// owner, which has ended the carrier, hears nothing of it.
func TestAfterLoss(t *testing.T) {
	sides := connect(t, newGateways(t), negotiate.CarrierSoft, 16)
	a := sides[0]
	a.Lose()
	eventually := func(flags uint32) {
		t.Helper()
		require.Eventually(t, func() bool { return a.lib.flags() == flags }, patience, time.Millisecond)
	}
	eventually(inprocess.Gone)
	time.Sleep(10 * time.Millisecond) // it is no longer hot, so the library must ring
	asks := uint32(inprocess.Attached | inprocess.Asks)
	a.lib.says(inprocess.EndFlags, uint64(asks))
	require.Equal(t, mirror.Said{Flags: asks, Questions: 1}, expect(t, a.said, "asks"))
	a.TellOpening(mirror.Opening{Ksent: 40}, 1, false)
	eventually(inprocess.Gone | inprocess.Asks)
	a.TellOpening(mirror.Opening{Ksent: 40}, 0, true)
	eventually(inprocess.Gone | inprocess.Asks | inprocess.Left)
	require.Empty(t, a.lost)
	sides[1].PeerLeft()
	require.Eventually(t, func() bool { return sides[1].lib.flags() == inprocess.Gone|inprocess.Left }, patience, time.Millisecond)
	require.Empty(t, sides[1].lost)
}

// TestFiles: they begin as those of an end and of its peer.
func TestFiles(t *testing.T) {
	sides := connect(t, newGateways(t), negotiate.CarrierSoft, 17)
	for i, s := range sides {
		for j, m := range [][]byte{s.lib.own, s.lib.mirror} {
			require.Equal(t, shared.EndHead(s.ID(), uint32(i^j), 17), m[:len(shared.EndHead(0, 0, 0))])
			require.Equal(t, uint32(17), word32(m, inprocess.EndOrder).Load())
		}
		require.Equal(t, []byte{byte(i + 1), byte(2 - i)}, []byte{s.lib.mirror[inprocess.EndNonces], s.lib.mirror[inprocess.EndNonces+inprocess.NonceSize]})
	}
}

// TestClosedUnderFire: an end may close at any point, while its peer writes.
func TestClosedUnderFire(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			gws := newGateways(t)
			for range 10 {
				sides := connect(t, gws, kind, 18)
				done := make(chan error, 2)
				go func() { done <- sides[0].send(1<<40, 99991, func() {}) }()
				go func() { done <- sides[1].receive(1<<40, 99991, func() {}) }()
				time.Sleep(rand.N(5 * time.Millisecond))
				sides[1].Close(func() {})
				gws[0].prov[kind].breakLast()
				expect(t, sides[0].lost, "loss")
				require.NoError(t, errors.Join(expect(t, done, "one library"), expect(t, done, "the other")))
			}
		})
	}
}

// TestNothingIsAllocated where bytes move.
func TestNothingIsAllocated(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			sides := connect(t, newGateways(t), kind, 16)
			echo := make(chan error, 1)
			const warm, rounds, size = 500, 2000, 700
			go func() {
				for b := sides[1].lib; b.tail < (warm+rounds)*size; {
					span, err := b.span()
					if err != nil {
						echo <- err
						return
					}
					_, err = b.write(span)
					if err != nil {
						echo <- err
						return
					}
					b.take(len(span))
				}
				echo <- nil
			}()
			round := func(n int) {
				for range n {
					total := sides[0].lib.head + size
					require.NoError(t, sides[0].send(total, size, func() {}))
					require.NoError(t, sides[0].receive(total, size, func() {}))
				}
			}
			round(warm)
			const spans = 10 // what goroutines beside allocate by the clock is not in all of them
			least := uint64(math.MaxUint64)
			var before, after runtime.MemStats // not by testing.AllocsPerRun, which leaves one processor to all
			for range spans {
				runtime.ReadMemStats(&before)
				round(rounds / spans)
				runtime.ReadMemStats(&after)
				least = min(least, after.Mallocs-before.Mallocs)
			}
			require.NoError(t, expect(t, echo, "echo"))
			require.Less(t, least, uint64(rounds/spans/10))
		})
	}
}

// TestDeviceIsLeft: an end leaves a device that is given up, whether it is offered, proved or carries.
func TestDeviceIsLeft(t *testing.T) {
	gws := newGateways(t)
	sides := connect(t, gws, negotiate.CarrierSoft, 16)
	no, yes := func(*carrier.Link) bool { return false }, func(*carrier.Link) bool { return true }
	sides[0].LeaveDevice(negotiate.CarrierSHM, yes)
	sides[0].LeaveDevice(negotiate.CarrierSoft, no)
	require.NoError(t, errors.Join(exchange(sides, 1000, 100, func() {})...))
	sides[0].LeaveDevice(negotiate.CarrierSoft, yes)
	require.Equal(t, negotiate.ReasonDrained, expect(t, sides[0].lost, "loss"))
	require.Equal(t, uint32(inprocess.Gone), sides[0].lib.flags())

	s := newSide(t, gws, 0, 16, -1)
	for _, kind := range kinds {
		_, err := s.Offer(gws[0].prov[kind])
		require.NoError(t, err)
	}
	s.LeaveDevice(negotiate.CarrierSoft, yes)
	proved := make(chan error, 1)
	s.Prove(negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}, patience, func(err error) { proved <- err })
	require.ErrorIs(t, expect(t, proved, "proof"), mirror.ErrNonsense)
	require.Empty(t, s.lost)
}

// TestUnproved: a peer that does not answer the proof is not waited for.
func TestUnproved(t *testing.T) {
	gws := newGateways(t)
	s := newSide(t, gws, 0, 16, -1)
	offer, err := s.Offer(gws[0].prov[negotiate.CarrierSoft])
	require.NoError(t, err)
	offer.RoCE.GID = verbs.GIDOf(gws[1].addr)
	offer.RoCE.QPN++
	proved := make(chan error, 1)
	s.Prove(offer, 100*time.Millisecond, func(err error) { proved <- err })
	require.ErrorIs(t, expect(t, proved, "proof"), mirror.ErrUnproved)
}

// TestSlot: a set that sleeps is rung for once, and again after a while; one that does not sleep is not.
func TestSlot(t *testing.T) {
	sides := connect(t, newGateways(t), negotiate.CarrierSoft, 16)
	a, b := sides[0], sides[1]
	arm, sleeps := word32(b.lib.own, inprocess.EndArm), word32(b.lib.desk.page, inprocess.DeskSlot+5*inprocess.SlotSize)
	move := func() uint64 {
		t.Helper()
		require.NoError(t, a.send(a.lib.head+1, 1, func() {}))
		require.Eventually(t, func() bool { return b.lib.arrived() == a.lib.head }, patience, time.Millisecond)
		b.gw.shard.Call(func() {})
		return b.Doorbells()
	}
	send := func(rung uint64) {
		t.Helper()
		require.Equal(t, rung, move())
	}
	send(0)
	arm.Store(1<<8 | 5)
	send(0)
	start := time.Now()        // before it rings
	b.gw.shard.Call(func() {}) // what comes next comes in a turn that begins later
	sleeps.Store(1)
	send(1)
	rung := uint64(1)
	for time.Since(start) < 10*time.Millisecond {
		rung = move()
		if time.Since(start) < 10*time.Millisecond { // it took no while
			require.EqualValues(t, 1, rung)
		}
	}
	time.Sleep(25 * time.Millisecond)
	b.gw.shard.Call(func() {}) // likewise
	send(rung + 1)
	sleeps.Store(2)
	send(rung + 2)
	arm.Store(2<<8 | inprocess.ArmSelf)
	send(rung + 3)
	send(rung + 3)
}

// TestAnswerInVain: the owner hears why there is no link, unless the end is closed.
func TestAnswerInVain(t *testing.T) {
	gws := newGateways(t)
	client, server := newSide(t, gws, 0, 16, -1), newSide(t, gws, 1, 16, -1)
	offer, err := client.Offer(gws[0].prov[negotiate.CarrierSoft])
	require.NoError(t, err)
	elsewhere := offer
	elsewhere.RoCE.GID = verbs.GIDOf(gws[1].addr)
	answered := make(chan error, 1)
	answer := func(from negotiate.CarrierOffer) {
		server.Answer(gws[1].prov[negotiate.CarrierSoft], from, &negotiate.Proposal{}, func(_ negotiate.CarrierOffer, err error) { answered <- err })
	}
	answer(elsewhere)
	require.ErrorIs(t, expect(t, answered, "answer"), carrier.ErrTranslated)
	server.Close(func() {})
	answer(offer)
	gws[1].shard.Call(func() {})
	require.Empty(t, answered)
}

// TestSetOfEnds: of the ends of a process that are at a slot one is rung for, and the set looks at all.
func TestSetOfEnds(t *testing.T) {
	const ends, total, size = 8, 200, 64
	gws := newGateways(t)
	desks := [2]*fakeDesk{newDesk(t), newDesk(t)}
	var readers []*library
	var sent sync.WaitGroup
	for range ends {
		sides := connectProcesses(t, gws, negotiate.CarrierSoft, 16, desks)
		readers = append(readers, sides[1].lib)
		sent.Go(func() {
			_ = sides[0].send(total*size, size, func() {
				if rand.IntN(4) == 0 {
					time.Sleep(rand.N(2 * time.Millisecond))
				}
			})
		})
	}
	defer sent.Wait()
	for left := ends * total * size; left > 0; {
		for _, l := range readers {
			for l.arrived() != l.tail {
				b, err := l.span()
				require.NoError(t, err)
				left -= len(b)
				l.take(len(b))
			}
		}
		if left > 0 {
			require.NoError(t, sleepInSet(desks[1], readers))
		}
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind. Beside the loops, which keep their processors
// while they are busy, four goroutines are the libraries.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(8)
	os.Exit(leak.Main(m))
}
