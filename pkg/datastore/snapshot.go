package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// snapshotEvery is how often a copy is saved.
	snapshotEvery = 12 * time.Hour
	snapshotsKept = 3
	// snapshotName sorts by time.
	snapshotName = "state-20060102T150405Z.db"
)

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
	if err := copySound(ctx, s.opts.File, path); err != nil {
		return err
	}
	for i, old := range s.snapshots() {
		if i >= snapshotsKept {
			_ = os.Remove(old)
		}
	}
	return nil
}

// copySound copies a database, with what is in its log, to a file that is
// there only when it is complete and sound.
func copySound(ctx context.Context, from, to string) error {
	partial := to + ".partial"
	_ = os.Remove(partial)
	err := copyDatabase(ctx, from, partial)
	if err == nil {
		if err = quickCheck(ctx, partial); err != nil {
			err = fmt.Errorf("the copy is not sound: %w", err)
		}
	}
	if err == nil {
		err = rename(partial, to)
	}
	if err != nil {
		_ = os.Remove(partial)
	}
	return err
}

func copyDatabase(ctx context.Context, from, to string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := open(from, "mode=ro")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", to)
	return err
}

// fallBack puts the newest sound snapshot in the place of a damaged file, which
// is kept aside. Without a snapshot it returns what to do.
func (s *SQLite) fallBack(ctx context.Context, damage error) error {
	saved := s.snapshots()
	for _, snapshot := range saved {
		if err := quickCheck(ctx, snapshot); err != nil {
			s.opts.Log.Warn("a snapshot of the datastore is damaged too", "snapshot", snapshot, "error", err)
			continue
		}
		if err := copySound(ctx, snapshot, s.opts.File+restored); err != nil {
			return fmt.Errorf("the datastore %s is damaged (%w) and its snapshot %s cannot be put in its place: %w; make room on its disk or mend it",
				s.opts.File, damage, snapshot, err)
		}
		s.opts.Log.Error("the datastore is damaged; Kombi goes on from the newest sound snapshot, and what was changed after it is lost",
			"file", s.opts.File, "damage", damage, "snapshot", snapshot)
		return s.replace()
	}
	which := "there is no snapshot"
	if len(saved) > 0 {
		which = "there is no sound snapshot"
	}
	return fmt.Errorf("the datastore %s is damaged (%w) and %s in %s: restore the file from a backup, or move it away to start an empty cluster",
		s.opts.File, damage, which, s.opts.SnapshotDir)
}

// replace finishes a fall-back: the damaged file and its log get another name
// and the restored one takes their place. It can be repeated after each of its
// steps; until the last one the damaged file keeps its name, so that nobody
// takes this for a new cluster.
func (s *SQLite) replace() error {
	aside := s.opts.File + ".damaged-" + time.Now().UTC().Format("20060102T150405Z")
	err := os.Link(s.opts.File, aside)
	if os.IsNotExist(err) || os.IsExist(err) {
		err = nil
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if moved := os.Rename(s.opts.File+suffix, aside+suffix); !os.IsNotExist(moved) {
			err = errors.Join(err, moved)
		}
	}
	if err == nil {
		err = rename(s.opts.File+restored, s.opts.File)
	}
	if err != nil {
		return fmt.Errorf("the damaged datastore cannot be replaced: %w; mend the disk of %s", err, filepath.Dir(s.opts.File))
	}
	s.opts.Log.Warn("the damaged datastore was kept aside", "file", aside)
	return nil
}
