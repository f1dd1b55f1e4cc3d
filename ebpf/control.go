package ebpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	bpf "github.com/cilium/ebpf"

	"github.com/smcgw/smcgw/internal/procfs"
)

// setupState writes control and policy before any program is attached.
func (d *Datapath) setupState() error {
	if d.cfg.CgroupPath == "" {
		path, err := procfs.CgroupMount()
		if err != nil {
			return fmt.Errorf("%w, and this process may not mount it (CAP_SYS_ADMIN): mount -t cgroup2 none /sys/fs/cgroup", err)
		}
		d.cfg.CgroupPath = path
	}
	d.control.now = smcgwControl{
		Mode:             uint32(d.cfg.Mode),
		HeartbeatTimeout: uint64(d.cfg.HeartbeatTimeout), Retry: uint64(d.cfg.Retry),
		BlackholeAfter: uint32(d.cfg.BlackholeAfter), Handshake: uint64(d.cfg.Handshake),
		Mtu: defaultMTU, Share: d.cfg.Rollout.Share.Threshold(),
		Compare: bit(d.cfg.Compare), Setups: uint32(max(d.cfg.SetUps, 0)),
	}
	if d.cfg.Waiting {
		d.control.now.NativeReason = uint32(ReasonGatewayStale)
	}
	p, err := CompilePolicy(d.cfg.Policy, d.cfg.NeverPorts)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.activateLocked(p)
}

// bit returns 1 for true and 0 for false.
func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Heartbeat tells the programs that the gateway is alive. Call it well within Config.HeartbeatTimeout.
func (d *Datapath) Heartbeat() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.beatAt(d.loadedAt + uint64(time.Since(d.loaded)))
}

// StopHeartbeat makes the gateway count as gone immediately, until the next Heartbeat.
func (d *Datapath) StopHeartbeat() error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.beatAt(0)
}

// beatAt writes the time of the last heartbeat.
func (d *Datapath) beatAt(ns uint64) error {
	var at [8]byte
	binary.NativeEndian.PutUint64(at[:], ns)
	if _, err := d.beat.WriteAt(at[:], 0); err != nil { // one store, so no program sees half of it
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// SetMode changes the mode for new connections.
func (d *Datapath) SetMode(m Mode) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.recountLocked(m); err != nil {
		return err
	}
	return d.changeControl(func(c *smcgwControl) { c.Mode = uint32(m) })
}

// SetOff sets or clears the off switch for new connections, and ends the wait for it.
func (d *Datapath) SetOff(off bool) error {
	return d.setControl(func(c *smcgwControl) {
		c.Off = bit(off)
		if c.NativeReason == uint32(ReasonGatewayStale) {
			c.NativeReason = 0
		}
	})
}

// setControl changes the control map as an operation of its own.
func (d *Datapath) setControl(change func(*smcgwControl)) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.changeControl(change)
}

// control is the content of the control map.
type control struct {
	mu  sync.Mutex // held while the map is written; shards wait for it
	now smcgwControl
}

// changeControl changes the control map within an operation.
func (d *Datapath) changeControl(change func(*smcgwControl)) error {
	d.control.mu.Lock()
	defer d.control.mu.Unlock()
	next := d.control.now
	if change(&next); next == d.control.now {
		return nil
	}
	if err := d.objs.Control.Put(uint32(0), next); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	d.control.now = next
	return nil
}

// generation returns the generation of the active policy's entries. Only the owner of mu changes it.
func (d *Datapath) generation() uint32 {
	d.control.mu.Lock()
	defer d.control.mu.Unlock()
	return d.control.now.Policy
}

// nextEpoch starts a new epoch, so that datagram tuples are decided again.
func (c *smcgwControl) nextEpoch() uint32 {
	c.Epoch = max(c.Epoch+1, 1)
	return c.Epoch
}

// SetPolicy replaces the policy atomically: every connection is decided either by the old one or by the new one.
func (d *Datapath) SetPolicy(rules []Rule) error {
	p, err := CompilePolicy(rules, d.cfg.NeverPorts)
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.activateLocked(p)
}

// SetRollout changes which of the connections that rules select are carried. It applies to new connections.
func (d *Datapath) SetRollout(r Rollout) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg.Rollout = r
	d.noteRolloutLocked()
	return d.changeControl(func(c *smcgwControl) {
		c.Share = r.Share.Threshold()
		c.nextEpoch()
	})
}

// noteRolloutLocked publishes policy and rollout for Decide.
func (d *Datapath) noteRolloutLocked() {
	p := *d.policy
	p.Rollout = d.cfg.Rollout
	d.inForce.Store(&p)
}

// Decide evaluates the active policy as the programs do.
func (d *Datapath) Decide(q Query) Verdict {
	return d.inForce.Load().Decide(q)
}

// refreshCgroups adds cgroups that have appeared and removes those that are gone.
func (d *Datapath) refreshCgroups() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.policy.Patterns) == 0 {
		return nil
	}
	now, gen := d.policy.Cgroups(d.cfg.CgroupPath), d.generation()
	var errs []error
	for id, mask := range now { // an entry that fails stays as it was, and is tried again
		was, known := d.cgroups[id]
		if known && was == mask {
			continue
		}
		err := d.objs.Cgroups.Put(smcgwCgroupKey{Id: id, Policy: gen}, mask)
		errs = append(errs, err)
		switch {
		case err == nil:
		case known:
			now[id] = was
		default:
			delete(now, id)
		}
	}
	for id, mask := range d.cgroups {
		if _, ok := now[id]; ok {
			continue
		}
		if err := ignoreMissing(d.objs.Cgroups.Delete(smcgwCgroupKey{Id: id, Policy: gen})); err != nil {
			errs = append(errs, err)
			now[id] = mask
		}
	}
	d.cgroups = now
	return errors.Join(errs...)
}

// ignoreMissing returns err, or nil if err says that a key to delete is not there.
func ignoreMissing(err error) error {
	if errors.Is(err, bpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// answerRate is how many offers a processor answers in a second. Further offers are left to the kernel (reason
// rate_limit). It is far above the rate of honest peers, and costs a flooded processor about a tenth of its time.
const answerRate = 1 << 16

// newCookieKey returns the secret key of the SYN-ACKs that the programs send. It need not change while the programs
// live, because the hash also covers the tick of the clock.
func newCookieKey() [2]uint64 {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return [2]uint64{binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])}
}

// setWireMTU stores the MTU of the wire, from which SYN-ACKs announce their MSS.
func (d *Datapath) setWireMTU(mtu int) error {
	d.wireMTU.Store(int64(mtu))
	return d.changeControl(func(c *smcgwControl) { c.Mtu = uint32(mtu) })
}

// Shed leaves the offers of peers to the kernel for the given reason until it is called with 0, because the owner has
// no room for another connection. Connections whose offer was answered continue.
func (d *Datapath) Shed(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.Shed = uint32(reason) })
}

// SetProofs bounds the number of peers' connections that reach the wire TUN in a second to what the owner can handle; 0
// means no bound. Once that many have been proved within a second, further offers in it are left to the kernel (reason
// rate_limit).
func (d *Datapath) SetProofs(perSecond int) error {
	return d.setControl(func(c *smcgwControl) { c.Proofs = uint32(max(perSecond, 0)) })
}
