package main

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/kombi-k8s/kombi/pkg/component"
)

// serviceManager is systemd, or whoever speaks its notification protocol
// (sd_notify(3)).
type serviceManager struct {
	socket   string
	watchdog time.Duration
}

// takeServiceManager takes the service manager's variables out of the
// environment, so that no embedded part answers in our place.
func takeServiceManager() serviceManager {
	m := serviceManager{socket: os.Getenv("NOTIFY_SOCKET")}
	if usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil {
		m.watchdog = time.Duration(usec) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	return m
}

// notifyReady says READY=1, then keeps saying WATCHDOG=1 as long as everything
// is healthy; a component that is not leaves the decision to the manager.
func (m serviceManager) notifyReady(ctx context.Context, g *component.Graph) {
	m.send("READY=1")
	if m.watchdog == 0 {
		return
	}
	tick := time.NewTicker(m.watchdog / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if g.Alive() {
			m.send("WATCHDOG=1")
		}
	}
}

func (m serviceManager) send(state string) {
	if m.socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte(state))
}
