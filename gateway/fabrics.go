package gateway

import "fmt"

// openFabrics opens the devices of the configuration, in its order. A device
// that cannot be opened is left out: connections fall back, and say so.
func (g *gateway) openFabrics() error {
	for _, kind := range g.cfg.Carriers {
		switch kind {
		case DeviceShm:
			fb, err := openShm(g)
			if err != nil {
				return fmt.Errorf("carrier shm: %w", err)
			}
			g.fabrics = append(g.fabrics, fb)
		case DeviceSoft, DeviceHW:
			g.log.Info("carrier not available in this version", "carrier", kind)
		}
	}
	for _, s := range g.shards {
		s.start()
	}
	return nil
}
