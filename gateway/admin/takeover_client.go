package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// errRefused is returned when a daemon does not do what it is asked for now.
var errRefused = errors.New("refused by the daemon")

// takeoverPatience bounds a step of a takeover; the longest moves connections to
// another carrier. After that the old gateway does not begin its last step any more.
const takeoverPatience = 30 * time.Second

// commitPatience is for the answer of a gateway that has begun to leave in time.
const commitPatience = 5 * time.Second

// Takeover is the successor's end of a takeover under way.
type Takeover struct {
	Offer TakeoverOffer

	admin  string
	lease  time.Duration // how long the old gateway may wait before it leaves
	cancel context.CancelFunc
	once   sync.Once
	Word   string        // of the old gateway, why it has ended the takeover; read after Done
	Done   chan struct{} // closed when the old gateway has ended the takeover, or itself
}

// TakeOver begins to take over from the daemon, for which it must permit its
// caller what it permits for [Client.SetOff]. The daemon takes everything
// back when the takeover is closed, or its process ends, before [Takeover.Leave].
// The error is [Absent] if there is no daemon, [errRefused] if it does not want to.
func (c *Client) TakeOver(ctx context.Context) (*Takeover, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	patience := time.AfterFunc(clientTimeout, cancel)
	resp, err := c.lasting(life, "/v1/takeover", struct{}{})
	var offer TakeoverOffer
	if err == nil {
		if offer, err = readOffer(resp.Body); err != nil {
			_ = resp.Body.Close()
		}
	}
	if !stop() || !patience.Stop() {
		if err = ctx.Err(); err == nil {
			err = c.unreachable(errors.New("no answer to a takeover"))
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	t := &Takeover{Offer: offer, admin: c.path, lease: takeoverPatience, cancel: cancel, Done: make(chan struct{})}
	go t.watch(resp.Body)
	return t, nil
}

// readOffer reads what the old gateway says of itself.
func readOffer(r io.Reader) (o TakeoverOffer, err error) {
	if err := json.NewDecoder(io.LimitReader(r, adminMaxBody)).Decode(&o); err != nil {
		return o, fmt.Errorf("read answer of the daemon: %w", err)
	}
	return o, o.validate()
}

// watch holds the request.
func (t *Takeover) watch(body io.ReadCloser) {
	defer close(t.Done)
	b, _ := io.ReadAll(io.LimitReader(body, adminMaxBody)) // its end may be that of a process
	_ = json.Unmarshal(b, &t.Word)
	_ = body.Close()
}

// ErrEnded is returned for a takeover that the old gateway has ended, which goes on.
var ErrEnded = errors.New("the old gateway has taken everything back")

// Ended waits until Done or the end of ctx, and returns [ErrEnded] unless the old gateway has died.
func (t *Takeover) Ended(ctx context.Context) error {
	select {
	case <-t.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if t.Word == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrEnded, t.Word)
}

// Yield has the old gateway leave new connections alone and give up what only one
// gateway can have: ports, admin socket.
func (t *Takeover) Yield(ctx context.Context) error {
	_, err := t.step(ctx, takeoverPatience, t.admin, "/v1/takeover/yield", takeoverStep{Token: t.Offer.Token})
	return err
}

// Leave ends the takeover: new connections are ours from now on. The old gateway
// serves its own for drain at most; 0: what its configuration says. Its service manager
// is to watch the process main from now on. It is told until when it may do so: one that
// stands still must not leave to a successor that has gone. It tells whether it is switched off.
func (t *Takeover) Leave(ctx context.Context, drain time.Duration, main int) (off bool, err error) {
	q := url.Values{"main": {strconv.Itoa(main)}, "until": {strconv.FormatUint(ebpf.Now()+uint64(t.lease), 10)}}
	a, err := t.step(ctx, t.lease+commitPatience, t.admin+config.DrainingSuffix, "/v1/takeover/leave?"+q.Encode(), takeoverStep{Token: t.Offer.Token, DrainSeconds: drain.Seconds()})
	return a.Off, err
}

func (t *Takeover) step(ctx context.Context, patience time.Duration, socket, path string, s takeoverStep) (a takeoverAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := NewClient(socket)
	defer c.Close()
	resp, err := c.lasting(ctx, path, s)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, adminMaxBody)).Decode(&a); err != nil {
		return a, c.unreachable(err)
	}
	return a, nil
}

// Close gives the takeover up, unless it has come to its end. It is idempotent.
func (t *Takeover) Close() {
	t.once.Do(t.cancel)
	<-t.Done
}

// predecessorPatience is how long the status waits for what a gateway that drains
// says of itself.
const predecessorPatience = 500 * time.Millisecond

// predecessor asks the gateway this one has taken over from, if it still drains.
func (s *Server) predecessor() *report.DrainInfo {
	if !s.socket.inPlace() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), predecessorPatience)
	defer cancel()
	c := NewClient(s.socket.path + config.DrainingSuffix)
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	return st.Draining
}

// Neighbour asks a gateway that drains for its datapath.
func (c *Client) Neighbour(ctx context.Context) (ebpf.Neighbour, error) {
	o, err := ask[TakeoverOffer](ctx, c, http.MethodGet, "/v1/neighbour", takeoverSchema)
	if err == nil {
		err = o.validate()
	}
	return o.Neighbour, err
}
