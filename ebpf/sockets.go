package ebpf

import (
	"fmt"

	"github.com/smcgw/smcgw/ebpf/internal/sockdiag"
)

// DestroySocket destroys a stale leg of a flow: one with local address t.Remote and remote address t.Local that was
// closed but still has something to deliver. It would swallow the next SYN given to the listener, and make the next
// dial from this tuple fail. It reports whether there was one.
func (d *Datapath) DestroySocket(t Tuple) (gone bool, err error) {
	return d.diagnose(t, func(smcgwFlowKey) (bool, error) {
		return d.legDiag.Destroy(t.Remote, t.Local, 0, func(s sockdiag.State) bool { return s != sockdiag.Listen })
	})
}

// ForgetTimeWait ends the TIME_WAIT of the local application's socket of a flow that has ended on both sides. Since its
// peer was a leg on this host, the state protects from nothing. It does harm: the client's next connection on the tuple
// would be native, and the kernel would compare its timestamps with those of the gateway's socket. It reports whether
// there was one.
func (d *Datapath) ForgetTimeWait(t Tuple) (gone bool, err error) {
	return d.byDevice(t, func(device uint32) (bool, error) {
		return d.hostDiag.Destroy(t.Local, t.Remote, device, func(s sockdiag.State) bool { return s == sockdiag.TimeWait })
	})
}

// ForgetRequest removes the connection request that an abandoned dial has left in the local application's kernel.
// Otherwise the kernel would answer the client's own SYN on the tuple with a challenge ACK, and the SYN would come
// again only a second later. It reports whether there was one.
func (d *Datapath) ForgetRequest(t Tuple) (gone bool, err error) {
	return d.byDevice(t, func(device uint32) (bool, error) {
		return d.hostDiag.Destroy(t.Local, t.Remote, device, func(s sockdiag.State) bool { return s == sockdiag.SynRecv })
	})
}

// LegWaits reports whether there is a leg, or a connection request, for a flow whose SYN was given to the listener. The
// legs' kernel repeats the SYN-ACK as long as the application's kernel does not answer, and a kernel whose application
// has given up refuses it.
func (d *Datapath) LegWaits(t Tuple) (is bool, err error) {
	return d.diagnose(t, func(smcgwFlowKey) (bool, error) {
		state, err := d.legDiag.State(t.Remote, t.Local, 0)
		return state != sockdiag.None && state != sockdiag.Listen, err
	})
}

// byDevice looks for the application's socket of a flow: first for one that is not bound to a device, then for one that
// is bound to the device of the entry.
func (d *Datapath) byDevice(t Tuple, look func(device uint32) (found bool, err error)) (found bool, err error) {
	return d.diagnose(t, func(k smcgwFlowKey) (bool, error) {
		if found, err := look(0); found || err != nil {
			return found, err
		}
		var v smcgwFlow
		if d.objs.Flows.Lookup(&k, &v) != nil || uint32(v.Bound) == 0 {
			return false, nil
		}
		return look(uint32(v.Bound))
	})
}

// Lingering returns the number of closed legs whose application has not yet taken what the kernel holds for it. They
// still need the steering.
func (d *Datapath) Lingering() (n int, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	return d.dumpDiag.Count(sockdiag.Lingering)
}

// diagnose calls ask for the sockets of t, as an operation.
func (d *Datapath) diagnose(t Tuple, ask func(smcgwFlowKey) (bool, error)) (is bool, err error) {
	k, err := t.key()
	if err != nil {
		return false, err
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	if is, err = ask(k); err != nil {
		return is, fmt.Errorf("socket of %v: %w", t, err)
	}
	return is, nil
}
