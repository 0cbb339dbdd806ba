package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Load is a client that never stops asking.
type Load struct {
	stop func()
	done chan struct{}

	mu       sync.Mutex
	requests int
	failures []string
	answers  map[string]int
}

// StartLoad asks url every interval, each time by a new connection, until Stop.
func StartLoad(t testing.TB, client *http.Client, url string, interval time.Duration) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{stop: cancel, done: make(chan struct{}), answers: map[string]int{}}
	t.Cleanup(func() { cancel(); <-l.done })
	go func() {
		defer close(l.done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			answer, err := get(client, url)
			l.mu.Lock()
			l.requests++
			if err != nil {
				l.failures = append(l.failures, fmt.Sprintf("%s: %v", time.Now().Format("15:04:05.000"), err))
			} else {
				l.answers[answer]++
			}
			l.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return l
}

func get(client *http.Client, url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), err
}

// Stop ends the load and returns the number of requests, the answers by how
// often they came, and the failures.
func (l *Load) Stop() (requests int, answers map[string]int, failures []string) {
	l.stop()
	<-l.done
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests, l.answers, l.failures
}

// Get asks once and returns the body.
func Get(client *http.Client, url string) (string, error) { return get(client, url) }
