package memhost

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/netstack"
)

// bridge joins a socket of the gateway's second stack to the far end of the
// descriptor the gateway works on. Bytes, ends and resets go through, both ways.
type bridge struct {
	app  *netstack.HostConn
	far  *net.TCPConn
	once sync.Once
	dirs sync.WaitGroup
	up   chan struct{} // the application has ended its direction
	down chan struct{} // the gateway has
	done chan struct{} // everything is delivered or reset, the sockets are closed

	sweptAt time.Duration // of the model's sweep: when it saw done
}

func newBridge(app *netstack.HostConn, far *net.TCPConn) *bridge {
	return &bridge{
		app: app, far: far,
		up: make(chan struct{}), down: make(chan struct{}), done: make(chan struct{}),
	}
}

func (b *bridge) start() {
	b.dirs.Go(b.fromApp)
	b.dirs.Go(b.fromGateway)
	go b.finish()
}

// ended reports whether nothing is left to do.
func (b *bridge) ended() bool { return isClosed(b.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// abort resets both sockets.
func (b *bridge) abort() {
	b.once.Do(func() {
		_ = b.far.SetLinger(0)
		_ = b.far.Close()
		b.app.Abort()
	})
}

// finish closes the sockets after both directions, when the application has
// acknowledged everything.
func (b *bridge) finish() {
	defer close(b.done)
	b.dirs.Wait()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for !b.app.Over() {
		<-tick.C
	}
	b.once.Do(func() {
		_ = b.far.Close()
		_ = b.app.Close()
	})
}

// bridgeChunk is how much is copied at once.
const bridgeChunk = 64 << 10

func (b *bridge) fromApp() {
	if err := move(b.far, b.app); err != nil {
		b.abort()
		return
	}
	close(b.up)
	_ = b.far.CloseWrite()
	b.watch(b.down, b.app.Over)
}

func (b *bridge) fromGateway() {
	if err := move(b.app, b.far); err != nil {
		b.abort()
		return
	}
	close(b.down)
	_ = b.app.CloseWrite()
	b.watch(b.up, b.farOver)
}

// move copies until the end of src; nil means an orderly one.
func move(dst io.Writer, src io.Reader) error {
	buf := make([]byte, bridgeChunk)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watchEvery is how often a half-closed socket is asked for a reset, which
// its reader does not see any more.
const watchEvery = 5 * time.Millisecond

// watch passes a reset on while the other direction is still open.
func (b *bridge) watch(other <-chan struct{}, over func() bool) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-other:
			return
		case <-tick.C:
		}
		if over() {
			if !isClosed(other) { // else closed in order meanwhile
				b.abort()
			}
			return
		}
	}
}

// farOver reports whether the gateway's end is gone although ours is open.
func (b *bridge) farOver() bool {
	rc, err := b.far.SyscallConn()
	if err != nil {
		return true
	}
	over := false
	if err := rc.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		over = err == nil && info.State == unix.BPF_TCP_CLOSE
	}); err != nil {
		return true
	}
	return over
}
