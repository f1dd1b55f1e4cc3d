package memhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// GatewayConfig configures a gateway in memory.
type GatewayConfig struct {
	// Config is the gateway's own. Admin, StateDir and ShmDir default to places
	// in the network's directory; only ShmDir is shared.
	Config config.Config
	// HeartbeatTimeout is the age at which the steering takes the gateway for
	// gone. Default: 200ms.
	HeartbeatTimeout time.Duration
	// KernelID names the kernel the gateway runs under; those with the same one
	// can share memory. Default: one for the network.
	KernelID [16]byte
	// Logger receives what happens. Default: discards.
	Logger *slog.Logger
	// Version is what status reports.
	Version string
}

// Gateway is a running gateway on a Host.
type Gateway struct {
	host   *Host
	model  *Model
	admin  *admin.Client
	socket string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // after done
}

// startTimeout bounds the wait for a gateway's first heartbeat.
const startTimeout = 10 * time.Second

// StartGateway runs a gateway on the host; it returns when connections are
// looked at. A host has one gateway at a time; after Stop or Kill it may have
// another.
func (h *Host) StartGateway(c GatewayConfig) (*Gateway, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gateway != nil {
		return nil, fmt.Errorf("gateway on %s: already running", h.name)
	}
	g, err := h.start(c)
	if err != nil {
		return nil, fmt.Errorf("gateway on %s: %w", h.name, err)
	}
	h.gateway = g
	return g, nil
}

func (h *Host) start(c GatewayConfig) (*Gateway, error) {
	cfg, err := h.place(c.Config)
	if err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.KernelID == [16]byte{} {
		c.KernelID = h.net.id
	}
	steering := gateway.SteeringConfig(cfg, c.Logger)
	steering.HeartbeatTimeout, steering.Off = c.HeartbeatTimeout, admin.NewOffFlag(cfg.StateDir).IsSet()
	m, err := newModel(h, steering)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &Gateway{
		host: h, model: m, cancel: cancel, done: make(chan struct{}),
		socket: cfg.Admin, admin: admin.NewClient(cfg.Admin),
	}
	go g.run(ctx, cfg, c)
	if err := g.awaitHeartbeat(); err != nil {
		return nil, errors.Join(err, g.end())
	}
	return g, nil
}

// place fills in where the gateway keeps its files.
func (h *Host) place(c config.Config) (config.Config, error) {
	dir := filepath.Join(h.net.cfg.Dir, h.name)
	set(&c.Admin, filepath.Join(dir, "admin.sock"))
	set(&c.StateDir, filepath.Join(dir, "state"))
	set(&c.ShmDir, h.net.ShmDir())
	for _, d := range []string{dir, c.StateDir, c.ShmDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return c, fmt.Errorf("gateway directory: %w", err)
		}
	}
	return c.WithDefaults(), nil
}

func (g *Gateway) run(ctx context.Context, cfg config.Config, c GatewayConfig) {
	defer close(g.done)
	g.err = gateway.RunOn(ctx, cfg, g.model.GatewayHost(c.KernelID), gateway.RunOptions{
		Logger: c.Logger, Version: c.Version,
	})
}

func (g *Gateway) awaitHeartbeat() error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	for !g.model.Alive() {
		select {
		case <-tick.C:
		case <-g.done:
			return errors.Join(errors.New("no heartbeat"), g.err)
		case <-late.C:
			return errors.New("no heartbeat in time")
		}
	}
	return nil
}

// end stops the gateway and takes the steering away.
func (g *Gateway) end() error {
	g.cancel()
	<-g.done
	g.admin.Close()
	return errors.Join(g.err, g.model.Close())
}

// Admin asks the gateway over its admin socket.
func (g *Gateway) Admin() *admin.Client { return g.admin }

// Socket is the path of the admin socket.
func (g *Gateway) Socket() string { return g.socket }

// Steering is the model the gateway works on.
func (g *Gateway) Steering() *Model { return g.model }

// Stop ends the gateway in order, as SIGTERM does. It is idempotent.
func (g *Gateway) Stop() error {
	if !g.host.forget(g) {
		return nil
	}
	return g.end()
}

// Kill ends the gateway as SIGKILL does, as far as the hosts can tell: nothing
// of it reaches the network any more, and its sockets reset the applications.
// It is idempotent.
func (g *Gateway) Kill() error {
	if !g.host.forget(g) {
		return nil
	}
	err := g.model.kill()
	g.cancel()
	<-g.done // what it says about its end is of no interest
	g.admin.Close()
	return err
}

// kill takes the steering away under a running gateway.
func (m *Model) kill() error {
	if err := m.change(func() { m.stalled, m.beat = true, 0 }); err != nil {
		return err
	}
	m.killLegs()
	return m.Close()
}

// forget takes a gateway from its host; false if it is not there any more.
func (h *Host) forget(g *Gateway) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gateway != g {
		return false
	}
	h.gateway = nil
	return true
}

// stopGateway ends the host's gateway, if there is one.
func (h *Host) stopGateway() error {
	h.mu.Lock()
	g := h.gateway
	h.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.Stop()
}
