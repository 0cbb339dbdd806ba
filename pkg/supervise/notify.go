package supervise

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type note int

const (
	ready note = iota
	keepAlive
)

// socket receives sd_notify(3) datagrams. Package net would do it in fewer
// lines and make the launcher half as big again.
type socket struct {
	c    chan note
	fd   int
	path string
}

func listen(path string) (*socket, error) {
	s := &socket{c: make(chan note), fd: -1, path: path}
	if path == "" {
		return s, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.fd = fd
	go s.receive()
	return s, nil
}

func (s *socket) receive() {
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(s.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		for line := range strings.SplitSeq(string(buf[:n]), "\n") {
			switch line {
			case "READY=1":
				s.c <- ready
			case "WATCHDOG=1":
				s.c <- keepAlive
			}
		}
	}
}

func (s *socket) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		_ = os.Remove(s.path)
	}
}
