// Package datastore owns the cluster's data: it opens the SQLite file, checks
// it, serves it to the API server as an etcd endpoint through kine, keeps it
// small, and saves snapshots of it.
package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/endpoint"
	_ "github.com/mattn/go-sqlite3" // the driver named "sqlite3"
	"github.com/prometheus/client_golang/prometheus"
)

// Options say where the datastore lives.
type Options struct {
	// Log receives state changes.
	Log *slog.Logger
	// File is the SQLite file; its folder is made with mode 0700.
	File string
	// SnapshotDir keeps copies of the file.
	SnapshotDir string
	// Socket is the unix socket on which the data is served as etcd.
	Socket string
	// Metrics receives kine's collectors; may be nil.
	Metrics prometheus.Registerer
}

// SQLite is the datastore of a single server.
type SQLite struct {
	opts Options

	mu      sync.Mutex
	failure error
}

// NewSQLite returns the datastore; nothing is opened before Run.
func NewSQLite(opts Options) *SQLite { return &SQLite{opts: opts} }

// Endpoint is the URL at which the API server finds the data.
func (s *SQLite) Endpoint() string { return "unix://" + s.opts.Socket }

// Name implements component.Component.
func (s *SQLite) Name() string { return "datastore" }

// Needs implements component.Component.
func (s *SQLite) Needs() []string { return nil }

const (
	// pageSize is small because Kubernetes writes one object of about 1.5 KB at
	// a time and kine keeps seven indexes: each commit writes every page it
	// touches, so pages of 4096 bytes would triple the bytes written at idle.
	pageSize = 1024

	// dsnParameters: full synchronisation, so that an acknowledged write
	// survives a power cut. kine's VACUUM at start is off, for it rewrites the
	// whole file; free pages are given back a few at a time instead.
	dsnParameters = "?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&cache=shared&_kine_disable_startup_vacuum=true"

	// maintenanceEvery is how often free pages are given back and the disk is
	// looked at; snapshotEvery how often a copy is saved.
	maintenanceEvery = 30 * time.Minute
	snapshotEvery    = 12 * time.Hour
	snapshotsKept    = 3
)

// Run implements component.Component.
func (s *SQLite) Run(ctx context.Context, ready func()) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.opts.Socket), 0o700); err != nil {
		return err
	}
	var wg sync.WaitGroup
	_, err := endpoint.Listen(ctx, endpoint.Config{
		WaitGroup: &wg,
		Listener:  s.Endpoint(),
		Endpoint:  "sqlite://" + s.opts.File + dsnParameters,
		// SQLite has one writer at a time; more connections only cost memory.
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: 4, MaxOpen: 8, MaxIdleTime: 2 * time.Minute},
		MetricsRegisterer:    s.opts.Metrics,
		NotifyInterval:       5 * time.Second,
		EmulatedETCDVersion:  "3.6.11",
		// The API server compacts; these bound how much one compaction deletes at once.
		CompactTimeout:   30 * time.Second,
		CompactMinRetain: 1000,
		CompactBatchSize: 1000,
		PollBatchSize:    500,
		// Nobody else writes to the file and kine notices its own writes at
		// once, so polling is only a safety net.
		PollInterval: 5 * time.Second,
		LogFormat:    "plain",
	})
	if err != nil {
		return fmt.Errorf("cannot open the datastore %s: %w", s.opts.File, err)
	}
	ready()
	s.maintain(ctx)
	wg.Wait()
	return nil
}

// Healthy implements component.HealthChecker.
func (s *SQLite) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

func (s *SQLite) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// prepare makes the file with the right page size, or checks that what is
// there is sound, falling back to the newest good snapshot when it is not.
func (s *SQLite) prepare(ctx context.Context) error {
	dir := filepath.Dir(s.opts.File)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the folder of the datastore: %w", err)
	}
	if _, err := os.Stat(s.opts.File); os.IsNotExist(err) {
		return s.create(ctx)
	}
	err := quickCheck(ctx, s.opts.File)
	if err == nil {
		return os.Chmod(s.opts.File, 0o600)
	}
	return s.fallBack(ctx, err)
}

func (s *SQLite) create(ctx context.Context) error {
	// Made first with mode 0600: SQLite would obey the umask.
	f, err := os.OpenFile(s.opts.File, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make the datastore: %w", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", s.opts.File)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, stmt := range []string{
		fmt.Sprintf("PRAGMA page_size = %d", pageSize),
		"PRAGMA auto_vacuum = INCREMENTAL",
		"PRAGMA journal_mode = WAL",
		"CREATE TABLE IF NOT EXISTS kombi (format INTEGER)",
	} {
		if _, err := db.ExecContext(ctx, stmt); err != nil {
			return fmt.Errorf("cannot make the datastore %s: %w; make room on its disk or mend it", s.opts.File, err)
		}
	}
	return nil
}

// quickCheck returns nil for a sound SQLite file, else what is wrong with it.
// It never writes to a file that is not sound.
func quickCheck(ctx context.Context, file string) error {
	if err := checkHeader(file); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", file+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	var result string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return err
	}
	if result != "ok" {
		return errors.New(strings.ReplaceAll(result, "\n", "; "))
	}
	return nil
}

func checkHeader(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	header := make([]byte, 16)
	n, err := f.Read(header)
	if n == 0 {
		return nil // empty: SQLite fills it, or its log does
	}
	if err != nil {
		return err
	}
	if string(header[:n]) != "SQLite format 3\x00" {
		return errors.New("it is not an SQLite file")
	}
	return nil
}

// maintain keeps the file small and saves snapshots until ctx is done.
func (s *SQLite) maintain(ctx context.Context) {
	tick := time.NewTicker(maintenanceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.giveBackFreePages(ctx); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("free space of the datastore cannot be given back", "error", err)
		}
		if err := s.saveSnapshotIfDue(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.setFailure(fmt.Errorf("a snapshot of the datastore cannot be saved: %w; make room in %s", err, s.opts.SnapshotDir))
			s.opts.Log.Error("snapshot failed", "error", err)
		} else {
			s.setFailure(nil)
		}
	}
}

func (s *SQLite) giveBackFreePages(ctx context.Context) error {
	db, err := sql.Open("sqlite3", s.opts.File+"?_busy_timeout=5000")
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
