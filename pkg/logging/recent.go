package logging

import (
	"sync"
	"time"
)

const (
	// repeatAfter is how long an equal message is left out.
	repeatAfter = 30 * time.Second
	// recentMost bounds how many messages are remembered.
	recentMost = 512
)

// recent remembers which messages were told lately.
type recent struct {
	now func() time.Time

	mu   sync.Mutex
	told map[string]time.Time
}

func newRecent(now func() time.Time) *recent {
	return &recent{now: now, told: make(map[string]time.Time)}
}

// seen says whether the message was told less than repeatAfter ago, and
// remembers it if not.
func (r *recent) seen(message string) bool {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.told[message]; ok && now.Sub(at) < repeatAfter {
		return true
	}
	if len(r.told) >= recentMost {
		clear(r.told)
	}
	r.told[message] = now
	return false
}
