package admin

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// successorPoll is how often a client that follows looks for the gateway that has taken over.
const successorPoll = 50 * time.Millisecond

// session is what a client has with one gateway, such as a stream of events.
type session struct {
	wait  func() error // returns when it is over
	close func()       // ends it; may be called twice
}

// follow begins a session with the gateway whose socket is there, and with each that takes over,
// until ctx ends, which is not an error, a session fails, or none is left. ready is called once
// the first session has begun. follow returns when all sessions are over.
func (c *Client) follow(ctx context.Context, ready func(), begin func(context.Context) (session, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	f := following{client: c, begin: begin, ended: make(chan followed)}
	defer f.sessions.Wait()
	defer cancel()
	err := f.next(ctx)
	if err == nil {
		ready()
	}
	poll := time.NewTicker(successorPoll)
	defer poll.Stop()
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case g := <-f.ended:
			f.live = slices.DeleteFunc(f.live, g.is)
			if err = g.err; err == nil && f.next(ctx) != nil && len(f.live) == 0 {
				err = c.unreachable(errors.New("the daemon has ended"))
			}
		case <-poll.C:
			_ = f.next(ctx) // else the next time
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// followed is a gateway by the file of its socket, and why the session with it ended.
type followed struct {
	at  os.FileInfo
	err error
}

// is reports whether the other one is the same. A later file may have the number of one that
// is gone.
func (g followed) is(other followed) bool {
	return g.at == nil || os.SameFile(g.at, other.at) && g.at.ModTime().Equal(other.at.ModTime())
}

// following is a call of follow.
type following struct {
	client  *Client
	begin   func(context.Context) (session, error)
	live    []followed
	refused followed // is not asked again while another is live

	sessions sync.WaitGroup
	ended    chan followed
}

// next begins a session with the gateway whose socket is there, unless there is one already.
func (f *following) next(ctx context.Context) error {
	for {
		g := f.client.gatewayAt()
		if len(f.live) > 0 && (g.is(f.refused) || slices.ContainsFunc(f.live, g.is)) {
			return nil
		}
		s, err := f.begin(ctx)
		if err != nil {
			if !errors.Is(err, ErrDaemonUnreachable) { // else it may not serve yet
				f.refused = g
			}
			return err
		}
		if !g.is(f.client.gatewayAt()) { // which of them it is with is not known
			s.close()
			continue
		}
		f.live = append(f.live, g)
		f.sessions.Go(func() {
			defer s.close()
			defer context.AfterFunc(ctx, s.close)()
			g.err = s.wait()
			select {
			case f.ended <- g:
			case <-ctx.Done():
			}
		})
		return nil
	}
}

// gatewayAt returns the gateway whose socket is at the path of the client.
func (c *Client) gatewayAt() (g followed) {
	g.at, _ = os.Lstat(c.path)
	return g
}
