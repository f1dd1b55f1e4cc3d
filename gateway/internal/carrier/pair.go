package carrier

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// pair is a queue pair in INIT with its endpoint: its receives are posted and its rings
// registered. It becomes the link of one connection.
type pair struct {
	queue *loop.Queue
	qp    verbs.QP
	ep    *rsocket.Endpoint
	arena *rmb.Arena
	rings ringPlan
}

// linkCap returns the capacities of a link's queue pair.
func linkCap() verbs.QPCap {
	return rsocket.EndpointConfig{Dialect: rsocket.Gateway}.QPCap()
}

// newPair makes a pair. works may be nil; own is nil for memory of the pool. On failure
// everything is undone.
func (env *Env) newPair(q *loop.Queue, works *rsocket.Works, pd verbs.PD, arena *rmb.Arena, limits verbs.QPCap, rings ringPlan, own *Memory) (*pair, error) {
	qp, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: q.CQ, RecvCQ: q.CQ, Cap: limits, Type: verbs.QPTRC})
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	cfg := rsocket.EndpointConfig{Dialect: rsocket.Gateway, RingSize: int(rings.first), Works: works}
	if own != nil {
		if err := own.lend(env.Shards, arena, &cfg); err != nil {
			return nil, errors.Join(err, qp.Close())
		}
	}
	ep, err := rsocket.NewEndpoint(qp, arena, cfg)
	if err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return &pair{queue: q, qp: qp, ep: ep, arena: arena, rings: rings}, nil
}

// link turns the pair into the link of a connection.
func (p *pair) link(env *Env, r Request) *Link {
	return &Link{
		Shard: r.Shard, QP: p.qp, EP: p.ep, Arena: p.arena, env: env, of: r, queue: p.queue, rings: p.rings,
		probeLen: rsocket.MaxProbe,
	}
}

// close closes a pair that did not become a link. If the queue pair cannot be closed, the
// memory it reaches is not freed.
func (p *pair) close() error {
	p.ep.Leave()
	if err := p.qp.Close(); err != nil {
		return err
	}
	return p.ep.Release()
}
