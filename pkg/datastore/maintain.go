package datastore

import (
	"context"
	"fmt"
	"time"
)

const (
	// firstLook is soon after the start, so that a new cluster has a snapshot;
	// maintenanceEvery is how often free pages are given back and a snapshot is
	// thought of; retryEvery when the last time failed.
	firstLook        = 2 * time.Minute
	maintenanceEvery = 30 * time.Minute
	retryEvery       = 2 * time.Minute
)

// maintain keeps the file small and saves snapshots until ctx is done.
func (s *SQLite) maintain(ctx context.Context) {
	for wait := firstLook; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = maintenanceEvery
		err := s.tidy(ctx, time.Now())
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			wait = retryEvery
		}
		s.mu.Lock()
		repeated := s.snapshotFailed != nil
		s.snapshotFailed = err
		s.mu.Unlock()
		if err != nil && !repeated {
			s.opts.Log.Error("the datastore cannot be looked after", "error", err)
		}
	}
}

// tidy saves a snapshot when one is due and gives free space back.
func (s *SQLite) tidy(ctx context.Context, now time.Time) error {
	if err := s.space(); err != nil {
		return nil // Healthy says so; a snapshot would make it worse
	}
	if err := s.giveBackFreePages(ctx); err != nil {
		return fmt.Errorf("free space of the datastore %s cannot be given back: %w", s.opts.File, err)
	}
	if err := s.saveSnapshotIfDue(ctx, now); err != nil {
		return fmt.Errorf("a snapshot of the datastore cannot be saved: %w; make room in %s", err, s.opts.SnapshotDir)
	}
	return nil
}

func (s *SQLite) giveBackFreePages(ctx context.Context) error {
	db, err := open(s.opts.File, "")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	var pages, free int64
	if err := db.QueryRowContext(ctx, "SELECT page_count, freelist_count FROM pragma_page_count, pragma_freelist_count").Scan(&pages, &free); err != nil {
		return err
	}
	// A file that is a quarter empty is worth the writes; a bounded step keeps the writer's lock short.
	if free*4 < pages || free < 1024 {
		return nil
	}
	_, err = db.ExecContext(ctx, "PRAGMA incremental_vacuum(4096)")
	return err
}
