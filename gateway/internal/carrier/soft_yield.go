package carrier

import (
	"errors"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// giveUpPatience bounds how long connections may take to leave a device, and then
// how long it may take to reset those that do not.
const giveUpPatience = 5 * time.Second

// anyLink is true of every link.
func anyLink(*Link) bool { return true }

// GiveUp implements Exclusive.
func (sf *Soft) GiveUp() error {
	sf.opening.Lock()
	sf.mu.Lock()
	sf.shut = true
	sf.mu.Unlock()
	sf.opening.Unlock()
	start := time.Now()
	for sf.busy() { // again and again: a handshake may have been under way
		spent := time.Since(start)
		if spent > 2*giveUpPatience {
			return errors.New("connections do not leave it")
		}
		sf.env.Vacate(negotiate.CarrierSoft, anyLink, spent > giveUpPatience)
		time.Sleep(10 * time.Millisecond)
	}
	sf.mu.Lock()
	units := sf.units
	sf.units = nil
	clear(sf.byAddr)
	for _, u := range units { // with the units: counters do not fall. What they count behind that is nothing
		sf.past.End(u.describe())
	}
	var errs []error
	for k, p := range sf.peers {
		delete(sf.peers, k)
		if p.users == 0 {
			errs = append(errs, p.close())
			continue
		}
		sf.former[p] = struct{}{} // bytes of it may be sent again, by the relay
	}
	sf.mu.Unlock()
	for _, u := range units {
		u.undrive()
		errs = append(errs, u.close())
	}
	return errors.Join(errs...)
}

// Reclaim implements Exclusive. Where a successor that ends still has the port, the device
// opens later, and on the alternate port only if that lasts.
func (sf *Soft) Reclaim() error {
	sf.opening.Lock()
	defer sf.opening.Unlock()
	sf.mu.Lock()
	was := sf.shut && len(sf.units) == 0 // else it was never given up
	sf.shut = false
	sf.mu.Unlock()
	if !was {
		return nil
	}
	sf.patient = time.Now().Add(portTurn)
	return sf.left(sf.extend()) // retry opens it
}

// busy reports whether a link has a queue pair.
func (sf *Soft) busy() bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	return sf.pairs > 0
}
