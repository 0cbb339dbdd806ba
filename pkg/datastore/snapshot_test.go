package datastore

import (
	"path/filepath"
	"testing"
	"time"
)

func TestSnapshotsAreSavedWhenDueAndOldOnesRemoved(t *testing.T) {
	s, _ := newStore(t)
	fill(t, s, 3)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Hour, 1}, {12 * time.Hour, 2}, {24 * time.Hour, 3}, {36 * time.Hour, 3}, {-time.Hour, 3}} {
		if err := s.saveSnapshotIfDue(t.Context(), now.Add(step.after)); err != nil {
			t.Fatal(err)
		}
		if n := len(s.snapshots()); n != step.want {
			t.Errorf("after %s there are %d snapshots, not %d", step.after, n, step.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(s.opts.SnapshotDir, "*.partial*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}
