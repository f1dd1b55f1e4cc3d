package carrier

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// rdmaTurn is how often to check whether an adapter has begun to take the packets of an
// address. This is in addition to the check when an adapter comes, since it may get addresses
// later.
const rdmaTurn = 30 * time.Second

// portTurn is how often to retry a port that was not available.
const portTurn = 5 * time.Second

// openUnits opens devices on addresses that have none: on the configured port, or on the
// alternate port if an RDMA stack of the host has that one. An adapter takes the packets
// before the kernel sees them, so a socket could be bound but would receive nothing. The
// kernel's rdma_rxe has sockets of its own, on all addresses. The caller holds opening, or
// has not published sf yet.
func (sf *Soft) openUnits(fresh []netip.Addr) error {
	ports := sf.rdma()
	port := sf.env.Config.Soft.UDPPort
	var free, lost []netip.Addr
	for _, a := range fresh {
		if ports.Taker(a, port) != "" {
			lost = append(lost, a)
		} else {
			free = append(free, a)
		}
	}
	var errs []error
	if len(free) > 0 {
		err := sf.openUnit(free, port, "")
		if errors.Is(err, unix.EADDRINUSE) && !time.Now().Before(sf.patient) {
			err = sf.openAlternate(free, ports.HeldBy(port))
		}
		errs = append(errs, err)
	}
	if len(lost) > 0 {
		why := "adapter " + ports.Taker(lost[0], port) + " takes UDP port " + strconv.Itoa(int(port))
		errs = append(errs, sf.openAlternate(lost, why))
	}
	return sf.left(errors.Join(errs...))
}

// left records why some addresses have no device, if so.
func (sf *Soft) left(err error) error {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.without = ""; err != nil {
		sf.without = err.Error()
	}
	return err
}

// openAlternate opens a device on the alternate port; why is the reason shown to operators.
func (sf *Soft) openAlternate(addrs []netip.Addr, why string) error {
	if err := sf.openUnit(addrs, sf.env.Config.Soft.AlternatePort(), why); err != nil {
		return fmt.Errorf("%s; the alternate port: %w", why, err)
	}
	return nil
}

// openUnit opens a device; note says why it is not on the configured port.
func (sf *Soft) openUnit(addrs []netip.Addr, port uint16, note string) (err error) {
	u := &SoftUnit{place: sf.freePlace()}
	if u.place == softUnits {
		return fmt.Errorf("%d devices have addresses that came at other times: %w", softUnits, verbs.ErrNoMemory)
	}
	u.soft, err = soft.Open(soft.Config{
		Name: softName(u.place), Addrs: addrs, UDPPort: port, Vectors: len(sf.env.Shards),
		MaxMemory: uint64(sf.env.Config.Limits.Memory), Logger: sf.env.Log, Priority: sf.env.Priority,
	})
	if err != nil {
		return err
	}
	if u.Driven, err = drive(sf.env, u.soft); err != nil {
		return errors.Join(err, u.soft.Close())
	}
	u.Port = u.soft.Port()
	if note != "" {
		u.note = "receives on UDP port " + strconv.Itoa(int(port)) + ": " + note
		sf.env.Log.Warn("soft device on its alternate port", "device", u.soft.Name(), "port", port, "addr", addrs[0], "addresses", len(addrs), "cause", note)
	}
	sf.mu.Lock()
	defer sf.mu.Unlock()
	sf.units = append(sf.units, u)
	slices.SortFunc(sf.units, func(a, b *SoftUnit) int { return a.place - b.place })
	sf.places = max(sf.places, u.place+1)
	for i, gid := range u.Port.GIDs {
		sf.byAddr[gid.GID.Addr()] = SoftPort{Unit: u, GID: uint8(i)}
	}
	return nil
}

// rdma returns the addresses and ports for which adapters of this host speak RoCE.
func (sf *Soft) rdma() sysfs.RoCEPorts {
	if sf.env.RoCE == nil {
		return nil
	}
	ports, err := sf.env.RoCE()
	if err != nil {
		sf.env.Log.Warn("look for RDMA adapters", "error", err)
	}
	return ports
}

// watchPorts watches for adapters that come later, which changed announces, and for ports
// that become free.
func (sf *Soft) watchPorts(changed <-chan struct{}) {
	tick, retry := time.NewTicker(rdmaTurn), time.NewTicker(portTurn)
	defer tick.Stop()
	defer retry.Stop()
	for {
		select {
		case <-sf.stop:
			return
		case <-changed:
		case <-tick.C:
			sf.closeSpent()
		case <-retry.C:
			sf.retry()
			continue
		}
		sf.followAdapters()
	}
}

// retry opens the device on addresses that have none.
func (sf *Soft) retry() {
	if sf.isWhole() {
		return
	}
	sf.closeSpent() // the reason may be a lack of places
	sf.opening.Lock()
	defer sf.opening.Unlock()
	if sf.isWhole() {
		return
	}
	if err := sf.extend(); err == nil {
		sf.env.Log.Info("soft device open on all addresses", "devices", len(sf.units))
	}
}

// isWhole reports whether there is nothing to retry.
func (sf *Soft) isWhole() bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	return sf.shut || sf.without == ""
}

// followAdapters moves addresses whose packets an adapter that came after the device has
// begun to take: new links use the alternate port. Queue pairs on the old port get no answers
// any more, and their flows leave them.
func (sf *Soft) followAdapters() {
	ports := sf.rdma()
	sf.opening.Lock()
	defer sf.opening.Unlock()
	lost := sf.takeAway(ports)
	if len(lost) == 0 {
		return
	}
	slices.SortFunc(lost, netip.Addr.Compare)
	if err := sf.openUnits(lost); err != nil {
		sf.env.Log.Warn("soft device beside an adapter", "error", err)
	}
}

// takeAway removes from their devices the addresses whose packets an adapter takes.
func (sf *Soft) takeAway(ports sysfs.RoCEPorts) (lost []netip.Addr) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for a, at := range sf.byAddr {
		if !sf.shut && ports.Taker(a, at.Unit.Port.UDPPort) != "" {
			delete(sf.byAddr, a)
			lost = append(lost, a)
		}
	}
	return lost
}
