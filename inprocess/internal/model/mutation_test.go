package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// mutation is one mistake: the explorer must find what it does.
type mutation uint8

const (
	none mutation = iota
	noProducerFence
	headRelaxed
	publishRelaxed
	publishFirst
	byteBeforeSpill
	byteBeforePromote
	tokenFirst
	countRelaxed
	noFirstToken
	baseWhileUnread
	extendWrapped
	headFirst
	tailLoadRelaxed
	promoteEarly
	promoteUnacked
	noWantFence
	noTailAgain
	roomLate
	noFlagsAgain
	noConsumerFence
	takeFirst
	takeAll
	leaveAll
	fewData
	armOnTheWay
	countLate
	countLoadRelaxed
	sameArm
	baseFirst
	headLoadRelaxed
	passUnread
	passEarly
	noSecondLook
	noLookAtEnd
	resetIsEnd
	tailRelaxed
	noRoomFence
	noSleepFence
	sleepCountLate
	sameSleep
	recallSilent
	noFreezeFence
)

// mistakes: each is made in one of the configurations, in the strongest memory in which it does harm.
var mistakes = []struct {
	mutation
	name   string
	in     string
	memory memory
	says   string
}{
	{noProducerFence, "no fence between head and arm", "blocking", tso, "the consumer sleeps"},
	{headRelaxed, "head is stored relaxed", "blocking", weak, "read while it is stored"},
	{publishRelaxed, "nx is stored relaxed", "blocking", weak, "delivered after"},
	{publishFirst, "nx is stored before the transition", "blocking", sc, "delivered after"},
	{byteBeforeSpill, "a spilled byte is sent before its transition is published", "blocking", sc, "no end"},
	{byteBeforePromote, "head is stored before the promotion is published", "freeze", sc, "a token is delivered as data"},
	{tokenFirst, "a token is sent before it is counted", "blocking", sc, "no end"},
	{countRelaxed, "ksent is stored relaxed", "blocking", weak, "thrown away as a token"},
	{noFirstToken, "a promotion sends no token by itself", "blocking", sc, "the consumer sleeps"},
	{baseWhileUnread, "base changes while a byte is unread", "blocking", sc, ""},
	{extendWrapped, "order grows with a byte behind the end of the ring", "extend, wrapped", sc, ""},
	{headFirst, "head is stored before the byte", "blocking", sc, ""},
	{tailLoadRelaxed, "the producer loads tail relaxed", "blocking", weak, "stored while it may still be read"},
	{promoteEarly, "a promotion before every transition is passed", "spill and return", sc, ""},
	{promoteUnacked, "a promotion with a full send buffer", "unacknowledged", sc, "refuses a token"},
	{noWantFence, "no fence between want and tail", "room", tso, "the producer waits for ever"},
	{noTailAgain, "no second look at tail before waiting for room", "room", sc, "the producer waits for ever"},
	{roomLate, "room is loaded after the look at tail", "room", sc, "the producer waits for ever"},
	{noFlagsAgain, "no second look at flags after a promotion", "freeze", sc, "a token is delivered as data"},
	{noConsumerFence, "no fence between arm and head", "blocking", tso, "the consumer sleeps"},
	{takeFirst, "tokens are taken before arming", "blocking", sc, ""},
	{takeAll, "all tokens are taken", "blocking", sc, ""},
	{leaveAll, "settling that finds something leaves all tokens", "tokens", sc, "refuses a token"},
	{fewData, "no look at nx before tokens are taken but one", "spill and return", sc, "thrown away as a token"},
	{armOnTheWay, "arming while two tokens are on their way", "tokens", sc, "refuses a token"},
	{countLate, "ksent is loaded after the look at head", "blocking", sc, "the consumer sleeps"},
	{countLoadRelaxed, "ksent is loaded relaxed", "blocking", weak, "thrown away as a token"},
	{sameArm, "arm is stored with the same value again", "blocking", sc, "the consumer sleeps"},
	{baseFirst, "base and order are loaded before head", "grow", sc, ""},
	{headLoadRelaxed, "head is loaded relaxed", "blocking", weak, ""},
	{passUnread, "a transition is passed with its ring bytes unread", "blocking", sc, ""},
	{passEarly, "a transition is passed before its tokens are dropped", "blocking", sc, "a token is delivered as data"},
	{noSecondLook, "no look at nx after SIOCINQ", "blocking", sc, "a token is delivered as data"},
	{noLookAtEnd, "no look at the ring after the end", "producer killed", sc, "the end is delivered"},
	{resetIsEnd, "each reset is an end", "producer killed", sc, "the end is delivered"},
	{tailRelaxed, "tail is stored relaxed", "blocking", weak, "stored while it may still be read"},
	{noRoomFence, "no fence between tail and want", "room", tso, "the producer waits for ever"},
	{noSleepFence, "no fence between sleeps and head", "slot, alone", tso, "the consumer sleeps"},
	{sleepCountLate, "ksent is loaded after sleeps is stored", "slot", sc, "the consumer sleeps"},
	{sameSleep, "sleeps is stored with the same value again", "slot, alone", sc, "the consumer sleeps"},
	{recallSilent, "a recall does not wake who waits for room", "freeze, room", sc, "the producer waits for ever"},
	{noFreezeFence, "no fence between flags and nx", "freeze", tso, "a token is delivered as data"},
}

func TestMutations(t *testing.T) {
	all := map[string]config{}
	for _, c := range append(configs, harmful...) {
		all[c.name] = c
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c, ok := all[m.in]
			require.True(t, ok)
			c.memory, c.mutation = m.memory, m.mutation
			r, err := explore(c)
			t.Logf("%d states", len(r.seen))
			require.Error(t, err)
			require.ErrorContains(t, err, m.says)
		})
	}
}

// harmful are configurations for mistakes that need more.
var harmful = []config{
	one("tokens", config{mode: blockingRead, bytes: 6, rcvbuf: 1, promoted: true, noEnd: true}),
	one("extend, wrapped", config{mode: blockingRead, bytes: 4, largest: 4, promoted: true, extends: true}),
	one("slot, alone", config{mode: slotWait, bytes: 4, promoted: true, noEnd: true}),
	one("unacknowledged", config{mode: blockingRead, bytes: 5, sndbuf: 4, promotions: 1, noEnd: true}),
}
