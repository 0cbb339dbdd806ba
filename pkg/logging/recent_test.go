package logging

import (
	"fmt"
	"testing"
	"time"
)

func TestEqualMessagesAreToldOnceInAWhile(t *testing.T) {
	now := time.Unix(0, 0)
	r := newRecent(func() time.Time { return now })
	if r.seen("a") || !r.seen("a") || r.seen("b") {
		t.Fatal("the first of each message is told, the second is not")
	}
	now = now.Add(repeatAfter)
	if r.seen("a") {
		t.Fatal("after a while it is told again")
	}
	for i := range 10 * recentMost {
		r.seen(fmt.Sprint(i))
	}
	if len(r.told) > recentMost {
		t.Fatalf("%d messages are remembered", len(r.told))
	}
}
