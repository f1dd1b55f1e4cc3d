package ebpf

import (
	"fmt"

	"github.com/smcgw/smcgw/ebpf/internal/sockdiag"
)

// DestroySocket destroys a stale leg of a flow: one with local address t.Remote and
// remote address t.Local, which was closed and has yet to deliver something. It would
// swallow the next SYN given to the listener, and refuse the next dial from this
// tuple. It reports whether there was one.
func (d *Datapath) DestroySocket(t Tuple) (gone bool, err error) {
	err = d.diagnose(t, func() error {
		gone, err = d.legDiag.Destroy(t.Remote, t.Local, 0, func(s sockdiag.State) bool { return s != sockdiag.Listen })
		return err
	})
	return gone, err
}

// ForgetTimeWait ends the TIME_WAIT of the local application's socket of a flow
// that has ended on both sides. It guards against nothing, since its peer was a
// leg on this host, and does harm: the client's next connection on
// the tuple would be native, and the kernel would compare its timestamps with
// those of the gateway socket. It reports whether there was one.
func (d *Datapath) ForgetTimeWait(t Tuple) (gone bool, err error) {
	err = d.diagnose(t, func() error {
		return d.byDevice(t, func(device uint32) (bool, error) {
			gone, err = d.hostDiag.Destroy(t.Local, t.Remote, device, func(s sockdiag.State) bool { return s == sockdiag.TimeWait })
			return gone, err
		})
	})
	return gone, err
}

// AppConnected reports whether the local application's kernel takes the flow's
// connection for established.
func (d *Datapath) AppConnected(t Tuple) (is bool, err error) {
	err = d.diagnose(t, func() error {
		return d.byDevice(t, func(device uint32) (bool, error) {
			state, err := d.hostDiag.State(t.Local, t.Remote, device)
			is = state.In(sockdiag.Connected)
			return is, err
		})
	})
	return is, err
}

// byDevice looks for the application's socket of a flow: for one that is bound to no device
// first, then, where that is not found, for one that is bound to the device of the entry.
func (d *Datapath) byDevice(t Tuple, look func(device uint32) (found bool, err error)) error {
	if found, err := look(0); found || err != nil {
		return err
	}
	k, err := t.key()
	if err != nil {
		return err
	}
	var v smcgwFlow
	if d.objs.Flows.Lookup(&k, &v) != nil || v.Bound == 0 {
		return nil
	}
	_, err = look(v.Bound)
	return err
}

// Lingering counts the legs that were closed, but whose application has yet to take
// what the kernel holds for it: they need the steering.
func (d *Datapath) Lingering() (n int, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	_, dump := d.cfg.Legs.Diag()
	return sockdiag.On(dump).Count(sockdiag.Lingering)
}

// diagnose asks about a socket of t.
func (d *Datapath) diagnose(t Tuple, ask func() error) error {
	if _, err := t.key(); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ask(); err != nil {
		return fmt.Errorf("socket of %v: %w", t, err)
	}
	return nil
}
