package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// ServiceManager tells systemd, or another manager that started the gateway, how the gateway
// is doing, with the protocol of sd_notify(3). A nil ServiceManager has no manager to tell.
// It is safe for concurrent use. A message that cannot be delivered is logged: the gateway
// does not depend on its manager.
type ServiceManager struct {
	watchdog time.Duration // interval in which keepalives are expected; 0: none
	log      *slog.Logger
	deliver  func(state string) error

	sending Lane        // serializes messages: the library blocks without limit if the manager does not read
	ready   atomic.Bool // Ready was called
	retired atomic.Bool // nothing is sent any more
}

// serviceTimeout bounds the wait for a manager that does not read.
const serviceTimeout = time.Second

var errManagerLate = errors.New("it does not read")

// watchdogPID names the process from which a manager expects keepalives.
const watchdogPID = "WATCHDOG_PID"

// NewServiceManager reads from the environment where to report to (NOTIFY_SOCKET,
// WATCHDOG_USEC, WATCHDOG_PID); it returns nil if nowhere. The watchdog may be meant for the
// guardian, the process that the manager started: then its daemon responds. A nil logger
// discards.
func NewServiceManager(log *slog.Logger) (*ServiceManager, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%q is neither a path nor an abstract name", name)
	}
	if os.Getenv(watchdogPID) == strconv.Itoa(os.Getppid()) {
		if err := os.Unsetenv(watchdogPID); err != nil {
			return nil, fmt.Errorf("clear %s: %w", watchdogPID, err)
		}
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("watchdog of the service manager: %w", err)
	}
	return &ServiceManager{watchdog: watchdog, log: log, deliver: Notify}, nil
}

// Notify delivers one message from this process. It may block on a manager that does not
// read.
func Notify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}

// Through makes another process deliver messages, the one that the manager listens to. It
// must be called before the first message.
func (m *ServiceManager) Through(deliver func(state string) error) {
	if m != nil {
		m.deliver = deliver
	}
}

// Ready reports that connections are handled, after the start or a reload.
func (m *ServiceManager) Ready() {
	if m != nil {
		m.ready.Store(true)
	}
	m.tell(daemon.SdNotifyReady, "STATUS=carrying as the configuration says")
}

// HandOver names the process to watch from now on, that of another gateway, and stops all
// messages of this one: the other one now represents the service.
func (m *ServiceManager) HandOver(main int) {
	if m == nil {
		return
	}
	if main > 0 {
		m.tell("MAINPID=" + strconv.Itoa(main))
	}
	m.retired.Store(true)
}

// Reload reports that another configuration is being read, and done that this is finished. A
// gateway that is still starting reports neither, since it is not ready.
func (m *ServiceManager) Reload() (done func()) {
	if m == nil || !m.ready.Load() {
		return func() {}
	}
	m.tell(daemon.SdNotifyReloading, daemon.SdNotifyMonotonicUsec())
	return m.Ready
}

// Stopping reports that the daemon is ending.
func (m *ServiceManager) Stopping() {
	m.tell(daemon.SdNotifyStopping, "STATUS=giving connections back")
}

// Watch sends the keepalives that a watchdog expects, as long as progress returns a new value
// each time, until ctx ends.
func (m *ServiceManager) Watch(ctx context.Context, progress func() time.Time) {
	if m == nil || m.watchdog/4 <= 0 {
		return
	}
	tick := time.NewTicker(m.watchdog / 4)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if now := progress(); !now.Equal(last) {
			last = now
			m.tell(daemon.SdNotifyWatchdog)
		}
	}
}

// tell delivers one message, and returns after serviceTimeout at the latest.
func (m *ServiceManager) tell(lines ...string) {
	if m == nil || m.retired.Load() {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), serviceTimeout, errManagerLate)
	defer cancel()
	state := strings.Join(lines, "\n")
	if err := m.sending.Do(ctx, func() error { return m.deliver(state) }); err != nil {
		m.log.Warn("service manager not told", "state", state, "error", err)
	}
}
