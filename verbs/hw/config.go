package hw

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// maxVectors bounds the event loops of a device.
const maxVectors = 256

// Config configures a device. Only Adapter must be set.
type Config struct {
	// Adapter is the name of the adapter, as in /sys/class/infiniband.
	Adapter string
	// Port is the number of its port. Default 1.
	Port uint8
	// Vectors is the number of event loops that drive the device. Vector i uses
	// the adapter's completion vector i modulo their number. Default 1.
	Vectors int
	// BoundCQs makes CreateQP return ErrCQFull for a queue pair whose work requests, together with those of all others on
	// the completion queue, could overrun it. An overrun ends every queue pair of the queue.
	BoundCQs bool
	// Library opens the adapter. Default: libibverbs of this host.
	Library ibv.Library
	// Logger receives events of the device. Default: discard.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Port == 0 {
		c.Port = 1
	}
	if c.Vectors == 0 {
		c.Vectors = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Library == nil {
		lib, err := ibv.Load()
		if err != nil {
			return c, err
		}
		c.Library = lib
	}
	return c, nil
}

// Validate reports all problems at once.
func (c Config) Validate() error {
	var errs []error
	if c.Adapter == "" {
		errs = append(errs, fmt.Errorf("adapter: no name: %w", verbs.ErrInvalid))
	}
	if c.Vectors < 0 || c.Vectors > maxVectors {
		errs = append(errs, fmt.Errorf("vectors: %d, want 1 to %d: %w", c.Vectors, maxVectors, verbs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// Ports lists the ports, as adapter/number, of this host's adapters that have a libibverbs provider and the given link
// layer.
func Ports(layer verbs.LinkLayer) (ports []string, err error) {
	lib, err := ibv.Load()
	if err != nil {
		return nil, err
	}
	adapters, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	for _, name := range adapters {
		dir := filepath.Join(ibv.ClassDir, name, "ports")
		numbers, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) { // it has just been removed
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ports of %s: %w", name, err)
		}
		for _, n := range numbers {
			of, err := os.ReadFile(filepath.Join(dir, n.Name(), "link_layer"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("port %s of %s: %w", n.Name(), name, err)
			}
			if strings.TrimSpace(string(of)) == layer.String() {
				ports = append(ports, name+"/"+n.Name())
			}
		}
	}
	return ports, nil
}
