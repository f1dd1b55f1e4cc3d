package hw

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// watcher is the goroutine that receives the asynchronous events of the library and forwards them. It waits in the
// runtime's poller, so no thread is blocked.
type watcher struct {
	file *os.File // a duplicate of the context's descriptor
	done sync.WaitGroup
}

func (w *watcher) start(d *Device) error {
	fd, err := unix.FcntlInt(uintptr(d.ctx.AsyncFD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return failure("descriptor of events", err)
	}
	w.file = os.NewFile(uintptr(fd), "async events of "+d.Name())
	conn, err := w.file.SyscallConn()
	if err != nil {
		return failure("descriptor of events", err)
	}
	w.done.Go(func() { d.watch(conn) })
	return nil
}

// stop ends the goroutine and waits for it.
func (w *watcher) stop() {
	if w.file != nil {
		_ = w.file.Close()
		w.done.Wait()
	}
}

func (d *Device) watch(conn syscall.RawConn) {
	for {
		var e ibv.Event
		var failed error
		err := conn.Read(func(uintptr) bool {
			e, failed = d.ctx.AsyncEvent()
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil: // closed
			return
		case errors.Is(failed, unix.EINTR):
		case failed != nil: // the driver removed the device (EIO)
			d.async.Notify(verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
			return
		default:
			d.raise(e)
		}
	}
}

// raise forwards an event. Events of other ports, and of objects closed meanwhile, are ignored.
func (d *Device) raise(e ibv.Event) {
	if e.Port != 0 && e.Port != d.cfg.Port {
		return
	}
	if e.Type == verbs.EventGIDChange {
		d.gids.Store(nil)
	}
	out := verbs.AsyncEvent{Type: e.Type}
	if e.ID != 0 {
		switch o := d.objects.find(e.ID).(type) {
		case *cq:
			if e.Type == verbs.EventCQErr {
				d.overran(o)
				return
			}
			out.CQ = o
		case *qp:
			out.QP = o
		default:
			return
		}
	}
	d.async.Notify(out)
}
