package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"
)

// ErrNotRunning is returned when nobody listens on the socket.
var ErrNotRunning = errors.New("kombi is not running")

// Get asks the Kombi behind the socket for its report.
func Get(ctx context.Context, socket string) (*Report, error) {
	client := &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kombi/status", nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w (nobody listens on %s): start it with `systemctl start kombi` or `kombi server`", ErrNotRunning, socket)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s is only open to root: use sudo", socket)
	case err != nil:
		return nil, fmt.Errorf("kombi does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var r Report
	if err := json.NewDecoder(response.Body).Decode(&r); err != nil {
		return nil, fmt.Errorf("kombi's answer cannot be read: %w", err)
	}
	return &r, nil
}
