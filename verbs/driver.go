package verbs

import "time"

// Poller is the epoll set of an event loop. A device adds its fds edge-triggered for reading and never reads them: an
// event only means that Progress must be called. Any goroutine may call Add and Remove, which must not block.
type Poller interface {
	Add(fd int) error
	Remove(fd int) error
}

// Driver is the handle with which an event loop drives a vector of a device. A turn is:
//
//	worked, next := d.Progress(now)   // receive, retry, expire
//	... poll CQs, post work ...
//	d.Flush()                         // ring the doorbells of the whole turn
//	if nothing worked && d.Arm() {    // only now may the loop sleep
//		epoll_wait(until next); d.Disarm()
//	}
type Driver interface {
	// Progress does all work that is ready. worked reports whether there was any; next is when Progress must be called
	// again even if no fd becomes ready, or zero.
	Progress(now time.Time) (worked bool, next time.Time)
	// Flush passes what was posted since the last Flush to the device and notifies peers of it. Receives need not be
	// visible before.
	Flush()
	// Arm makes peers ring from now on. False means that work arrived meanwhile: do not sleep but call Progress (the
	// driver has disarmed itself).
	Arm() bool
	// Disarm ends Arm after waking up.
	Disarm()
	// Close returns the vector: its fds leave the poller, and its queue pairs make no progress until the vector is driven
	// again.
	Close() error
}

// Peeker is implemented by drivers that can tell cheaply, with a few loads, whether Progress would find work. A loop
// that polls for a while before it sleeps uses it. For other drivers, only the poller's fds show that there is work.
type Peeker interface {
	// Ready reports whether the next Progress has something to do. It changes nothing.
	Ready() bool
}
