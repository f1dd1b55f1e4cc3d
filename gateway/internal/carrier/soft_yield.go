package carrier

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// giveUpPatience bounds how long connections may take to leave a device, and then how long
// resetting the remaining ones may take.
const giveUpPatience = 5 * time.Second

// anyLink matches every link.
func anyLink(*Link) bool { return true }

// GiveUp implements Exclusive.
func (sf *Soft) GiveUp() error {
	sf.opening.Lock()
	sf.mu.Lock()
	sf.shut = true
	sf.mu.Unlock()
	sf.opening.Unlock()
	start := time.Now()
	for sf.busy() { // repeatedly: a handshake may have been under way
		spent := time.Since(start)
		if spent > 2*giveUpPatience {
			return errors.New("connections do not leave it")
		}
		sf.env.Vacate(negotiate.CarrierSoft, anyLink, spent > giveUpPatience)
		time.Sleep(10 * time.Millisecond)
	}
	sf.opening.Lock()
	sf.mu.Lock()
	units := slices.Clone(sf.units)
	err := sf.drop(units)
	sf.mu.Unlock()
	sf.opening.Unlock()
	for _, u := range units {
		err = errors.Join(err, u.end())
	}
	return err
}

// closeSpent closes devices that have lost all their addresses, once nothing uses them:
// datagrams go natively, and connections end in their own time. The caller must hold no lock,
// since closeSpent waits for shards.
func (sf *Soft) closeSpent() {
	spent, err := sf.spent()
	if err != nil {
		sf.env.Log.Warn("look for addresses of soft devices", "error", err)
	}
	for _, u := range spent {
		sf.env.Withdrawn(u.soft)
	}
	sf.opening.Lock()
	sf.mu.Lock()
	spent = slices.DeleteFunc(spent, func(u *SoftUnit) bool { return u.users > 0 || !slices.Contains(sf.units, u) })
	if len(spent) > 0 { // an address that returns waits for its port
		sf.patient = time.Now().Add(portTurn)
	}
	err = sf.drop(spent)
	sf.mu.Unlock()
	sf.opening.Unlock()
	for _, u := range spent {
		sf.env.Log.Info("soft device closed: its addresses have left", "device", u.soft.Name())
		err = errors.Join(err, u.end())
	}
	if err != nil {
		sf.env.Log.Warn("close soft device", "error", err)
	}
}

// spent returns the devices that have no address any more: the host has none of theirs, or
// other devices have taken them over.
func (sf *Soft) spent() ([]*SoftUnit, error) {
	sf.mu.Lock()
	units := slices.Clone(sf.units) // before the look, which says nothing about devices opened later
	sf.mu.Unlock()
	if len(units) == 0 {
		return nil, nil
	}
	all, err := sf.env.Addrs()
	if err != nil {
		return nil, err
	}
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, a := range all {
		at := sf.byAddr[a]
		units = slices.DeleteFunc(units, func(u *SoftUnit) bool { return u == at.Unit })
	}
	return units, nil
}

// drop removes unused units from the open ones and saves their counters; what they count
// after that is lost. The caller holds opening and mu, and must close the units after
// releasing both.
func (sf *Soft) drop(units []*SoftUnit) error {
	var errs []error
	for _, u := range units {
		sf.units = slices.DeleteFunc(sf.units, func(o *SoftUnit) bool { return o == u })
		sf.past.End(u.describe())
	}
	maps.DeleteFunc(sf.byAddr, func(_ netip.Addr, at SoftPort) bool { return slices.Contains(units, at.Unit) })
	for k, p := range sf.peers {
		if !slices.Contains(units, k.unit) {
			continue
		}
		delete(sf.peers, k)
		if p.users == 0 {
			errs = append(errs, p.close())
			continue
		}
		sf.former[p] = struct{}{} // the relay may retransmit bytes in its memory
	}
	return errors.Join(errs...)
}

// end closes a dropped unit. It waits for the shards.
func (u *SoftUnit) end() error {
	u.undrive()
	return u.close()
}

// Reclaim implements Exclusive. If a terminating successor still has the port, the device
// opens later, and on the alternate port only if the port stays taken.
func (sf *Soft) Reclaim() error {
	sf.opening.Lock()
	defer sf.opening.Unlock()
	sf.mu.Lock()
	was := sf.shut && len(sf.units) == 0 // otherwise it was never given up
	sf.shut = false
	sf.mu.Unlock()
	if !was {
		return nil
	}
	sf.patient = time.Now().Add(portTurn)
	return sf.left(sf.extend()) // if this fails, retry opens it
}

// busy reports whether a link or datagrams have a queue pair.
func (sf *Soft) busy() bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	return slices.ContainsFunc(sf.units, func(u *SoftUnit) bool { return u.users > 0 })
}
