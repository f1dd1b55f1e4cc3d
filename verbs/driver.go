package verbs

import "time"

// Poller is the epoll set of an event loop. A device adds its fds edge
// triggered for reading and never reads them, so an event only says: call
// Progress. Add and Remove are called by any goroutine and must not block.
type Poller interface {
	Add(fd int) error
	Remove(fd int) error
}

// Driver is the vector of a device in the hands of an event loop. A turn is:
//
//	worked, next := d.Progress(now)   // receive, retry, expire
//	... poll CQs, post work ...
//	d.Flush()                         // ring the doorbells of the whole turn
//	if nothing worked && d.Arm() {    // only now may the loop sleep
//		epoll_wait(until next); d.Disarm()
//	}
type Driver interface {
	// Progress does all work that is ready. worked tells whether there was
	// any; next is when Progress wants to be called again although no fd
	// becomes ready, zero if it does not.
	Progress(now time.Time) (worked bool, next time.Time)
	// Flush hands what was posted since the last Flush to the device and
	// notifies peers of it. A receive need not be there before.
	Flush()
	// Arm makes peers ring from now on. False means that work arrived
	// meanwhile: do not sleep, call Progress (the driver has disarmed itself).
	Arm() bool
	// Disarm ends Arm after waking up.
	Disarm()
	// Close gives the vector back: fds leave the poller, its queue pairs make
	// no progress until the vector is driven again.
	Close() error
}

// Peeker is implemented by drivers that can tell for the price of a few loads
// whether Progress would find work. A loop that looks for work for a while before
// it sleeps asks it. The work of other drivers shows at the fds of the poller.
type Peeker interface {
	// Ready reports whether the next Progress has something to do. It changes nothing.
	Ready() bool
}
