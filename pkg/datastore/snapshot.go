package datastore

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// snapshotName sorts by time.
const snapshotName = "state-20060102T150405Z.db"

// snapshots returns the paths of the saved copies, the newest first.
func (s *SQLite) snapshots() []string {
	found, _ := filepath.Glob(filepath.Join(s.opts.SnapshotDir, "state-*.db"))
	slices.Sort(found)
	slices.Reverse(found)
	return found
}

func (s *SQLite) saveSnapshotIfDue(ctx context.Context, now time.Time) error {
	if saved := s.snapshots(); len(saved) > 0 {
		at, err := time.Parse(snapshotName, filepath.Base(saved[0]))
		// A snapshot from the future (the clock was set back) is due as well.
		if err == nil && now.Sub(at) < snapshotEvery && !at.After(now) {
			return nil
		}
	}
	return s.saveSnapshot(ctx, now)
}

// saveSnapshot copies the running datastore into one new file, checks it, and
// removes the oldest copies.
func (s *SQLite) saveSnapshot(ctx context.Context, now time.Time) error {
	if err := os.MkdirAll(s.opts.SnapshotDir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.opts.SnapshotDir, now.UTC().Format(snapshotName))
	partial := path + ".partial"
	_ = os.Remove(partial)
	if err := copyDatabase(ctx, s.opts.File, partial); err != nil {
		_ = os.Remove(partial)
		return err
	}
	if err := quickCheck(ctx, partial); err != nil {
		_ = os.Remove(partial)
		return fmt.Errorf("the copy is not sound: %w", err)
	}
	if err := os.Rename(partial, path); err != nil {
		return err
	}
	for i, old := range s.snapshots() {
		if i >= snapshotsKept {
			_ = os.Remove(old)
		}
	}
	return nil
}

func copyDatabase(ctx context.Context, from, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", from+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return err
	}
	return syncFile(to)
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// fallBack puts the newest sound snapshot in the place of a damaged file, which
// is kept aside. Without a snapshot it returns what to do.
func (s *SQLite) fallBack(ctx context.Context, damage error) error {
	for _, snapshot := range s.snapshots() {
		if quickCheck(ctx, snapshot) != nil {
			continue
		}
		aside := s.opts.File + ".damaged-" + time.Now().UTC().Format("20060102T150405Z")
		restored := s.opts.File + ".restored"
		_ = os.Remove(restored)
		if err := copyDatabase(ctx, snapshot, restored); err != nil {
			return fmt.Errorf("the datastore %s is damaged (%w) and the snapshot %s cannot be put in its place: %w", s.opts.File, damage, snapshot, err)
		}
		for _, suffix := range []string{"", "-wal", "-shm"} {
			if err := os.Rename(s.opts.File+suffix, aside+suffix); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		if err := os.Rename(restored, s.opts.File); err != nil {
			return err
		}
		s.opts.Log.Error("the datastore was damaged; Kombi goes on from the newest snapshot, later changes are lost",
			"damage", damage, "snapshot", snapshot, "damagedFile", aside)
		return nil
	}
	return fmt.Errorf("the datastore %s is damaged (%w) and there is no snapshot in %s: restore the file from a backup, or move it away to start an empty cluster",
		s.opts.File, damage, s.opts.SnapshotDir)
}
