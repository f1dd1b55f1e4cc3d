package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ServiceManager tells systemd, or whoever else started the gateway, how it is
// doing: the protocol of sd_notify(3). A nil one tells nobody. It is safe for
// concurrent use. What it cannot deliver is logged and nothing more: the gateway
// does not depend on who watches it.
type ServiceManager struct {
	addr     *net.UnixAddr
	watchdog time.Duration // a sign of life is wanted this often; 0: never
	log      *slog.Logger
}

// serviceTimeout bounds the delivery of one message to a manager that does not read.
const serviceTimeout = time.Second

// NewServiceManager reads where to report to from the environment (NOTIFY_SOCKET,
// WATCHDOG_USEC, WATCHDOG_PID), which getenv returns: nil if nowhere. The watchdog
// may be meant for the guardian, the process the manager has started. A nil logger
// discards.
func NewServiceManager(getenv func(string) string, log *slog.Logger) (*ServiceManager, error) {
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%q is neither a path nor an abstract name", name)
	}
	m := &ServiceManager{addr: &net.UnixAddr{Name: name, Net: "unixgram"}, log: log}
	usec := getenv("WATCHDOG_USEC")
	if usec == "" || !forUs(getenv("WATCHDOG_PID")) {
		return m, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return nil, fmt.Errorf("WATCHDOG_USEC=%q is not a time", usec)
	}
	m.watchdog = time.Duration(n) * time.Microsecond
	return m, nil
}

// forUs reports whether a process id of the environment is this gateway's.
func forUs(pid string) bool {
	return pid == "" || pid == strconv.Itoa(os.Getpid()) || pid == strconv.Itoa(os.Getppid())
}

// Ready says that connections are looked at, after the start or a reload.
func (m *ServiceManager) Ready() { m.tell("READY=1\nSTATUS=carrying as the configuration says") }

// Reloading says that another configuration is being read; Ready follows.
func (m *ServiceManager) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return
	}
	m.tell(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping says that the daemon ends.
func (m *ServiceManager) Stopping() { m.tell("STOPPING=1\nSTATUS=giving connections back") }

// Watch gives the signs of life that a watchdog wants, as long as progress returns
// something else each time, until ctx ends.
func (m *ServiceManager) Watch(ctx context.Context, progress func() time.Time) {
	if m == nil || m.watchdog == 0 {
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
			m.tell("WATCHDOG=1")
		}
	}
}

func (m *ServiceManager) tell(state string) {
	if m == nil {
		return
	}
	if err := m.send(state); err != nil {
		m.log.Warn("service manager not told", "state", state, "error", err)
	}
}

// send is one datagram. The socket is made for it: a message an hour is no reason
// to hold a descriptor.
func (m *ServiceManager) send(state string) error {
	c, err := net.DialUnix("unixgram", nil, m.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.SetWriteDeadline(time.Now().Add(serviceTimeout))
	_, errWrite := c.Write([]byte(state))
	return errors.Join(err, errWrite)
}
