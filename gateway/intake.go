package gateway

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/netstack/link"
)

// intake makes a shard receive packets from the wire side of the steering. The mini sockets
// thus work on a shard, and a packet for a connection of this shard wakes no other thread.
type intake struct {
	on   *loop.Shard
	link link.Polled
	due  bool // Service is scheduled, in the next turn or after intakePause; otherwise an edge calls it
}

// intakePause is how long until a device that is down is tried again.
const intakePause = 100 * time.Millisecond

// startIntake starts receiving packets of l, if that link has to be polled.
func startIntake(on *loop.Shard, l link.Link) (err error) {
	polled, ok := l.(link.Polled)
	if !ok {
		return nil
	}
	i := &intake{on: on, link: polled}
	on.Call(func() {
		err = on.WatchReads(polled.FD(), func(uint32) { i.edge() })
	})
	if err != nil {
		return fmt.Errorf("wire link: %w", err)
	}
	return nil
}

// Owner implements loop.Work. The packets may belong to any connections.
func (i *intake) Owner() loop.Owner { return nil }

func (i *intake) edge() {
	if !i.due {
		i.Service()
	}
}

// Service implements loop.Servicer.
func (i *intake) Service() {
	more, err := i.link.Receive()
	i.due = more || err != nil
	switch {
	case err != nil: // the device is down
		i.on.After(intakePause, i.Service)
	case more:
		i.on.Later(i)
	}
}
