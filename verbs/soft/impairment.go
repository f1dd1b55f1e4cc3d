package soft

import (
	"math/rand/v2"
)

// Impairment is a bad network, for tests of what is built on a device: of so many per thousand datagrams that leave, some
// are lost, some leave twice and some leave after later ones. The zero value is a good network.
type Impairment struct {
	Seed                uint64
	Loss, Repeat, Delay int // per thousand
}

// maxDelayed bounds the datagrams that wait to be overtaken.
const maxDelayed = 64

// impairedLink is a link with an impairment on what leaves.
type impairedLink struct {
	link
	how     Impairment
	rand    *rand.Rand
	delayed []delayedTrain
}

// delayedTrain is a datagram and how many others it lets pass.
type delayedTrain struct {
	train
	passes int
}

func newImpairedLink(l link, how Impairment, vector int) link {
	return &impairedLink{link: l, how: how, rand: rand.New(rand.NewPCG(how.Seed, uint64(vector)))}
}

// maxTrain: each datagram has its own fate, so each leaves alone.
func (l *impairedLink) maxTrain() int { return 1 }

func (l *impairedLink) send(trains []train) {
	for i := range trains {
		l.one(trains[i])
	}
}

// receive also lets go of what nothing came to overtake.
func (l *impairedLink) receive(budget int, to receiver) bool {
	l.pass()
	return l.link.receive(budget, to)
}

func (l *impairedLink) one(t train) {
	if l.chance(l.how.Loss) {
		return
	}
	if l.chance(l.how.Delay) && len(l.delayed) < maxDelayed {
		l.delayed = append(l.delayed, delayedTrain{keep(t), 1 + l.rand.IntN(8)})
		return
	}
	l.link.send([]train{t})
	if l.chance(l.how.Repeat) {
		l.link.send([]train{t})
	}
	l.pass()
}

// pass counts one that overtook those that wait.
func (l *impairedLink) pass() {
	for i := 0; i < len(l.delayed); {
		d := &l.delayed[i]
		if d.passes--; d.passes > 0 {
			i++
			continue
		}
		l.link.send([]train{d.train})
		l.delayed = append(l.delayed[:i], l.delayed[i+1:]...)
	}
}

func (l *impairedLink) chance(perMille int) bool { return l.rand.IntN(1000) < perMille }

// keep copies a datagram, whose memory is its sender's.
func keep(t train) train {
	var all []byte
	for _, b := range t.bufs {
		all = append(all, b...)
	}
	t.bufs = [][]byte{all}
	return t
}
