package cniapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// Call sends a request to the node's socket and waits for the answer, at most for
// timeout. It uses the socket directly, since package net would double the plugin's size.
func Call(socket string, req *Request, timeout time.Duration) (*Response, error) {
	raw, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	conn := os.NewFile(uintptr(fd), socket)
	defer conn.Close()
	tv := syscall.NsecToTimeval(timeout.Nanoseconds())
	for _, opt := range []int{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, opt, &tv); err != nil {
			return nil, fmt.Errorf("set timeout: %w", err)
		}
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("kombi is not running: %s: %w; start it, and pods follow", socket, err)
		}
		return nil, fmt.Errorf("cannot reach kombi at %s: %w", socket, err)
	}
	if _, err := conn.Write(raw); err != nil {
		return nil, fmt.Errorf("cannot send to kombi at %s: %w", socket, err)
	}
	if err := syscall.Shutdown(fd, syscall.SHUT_WR); err != nil {
		return nil, fmt.Errorf("cannot send to kombi at %s: %w", socket, err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			return nil, fmt.Errorf("kombi did not answer within %s; see its log", timeout)
		}
		return nil, fmt.Errorf("cannot read from kombi at %s: %w", socket, err)
	}
	if len(answer) == 0 {
		return nil, errors.New("kombi stopped before it answered; the runtime will try again")
	}
	resp := &Response{}
	if err := json.Unmarshal(answer, resp); err != nil {
		return nil, fmt.Errorf("kombi answered with something else than JSON: %w", err)
	}
	return resp, nil
}
