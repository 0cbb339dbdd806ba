// Package datastore owns the cluster's data: it opens the SQLite file, checks
// it, serves it to the API server as an etcd endpoint through kine, keeps it
// small, and saves snapshots of it.
package datastore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/endpoint"
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

	mu             sync.Mutex
	writeFailure   error // why changes cannot be stored; nil again after the next one that can
	snapshotFailed error // why the last snapshot could not be saved
}

// NewSQLite returns the datastore; nothing is opened before Run.
func NewSQLite(opts Options) *SQLite { return &SQLite{opts: opts} }

// Endpoint is the URL at which the API server finds the data.
func (s *SQLite) Endpoint() string { return "unix://" + s.opts.Socket }

// Name implements component.Component.
func (s *SQLite) Name() string { return "datastore" }

// Needs implements component.Component.
func (s *SQLite) Needs() []string { return nil }

// dsnParameters: full synchronisation, so that an acknowledged write survives
// a power cut. kine's VACUUM at start is off, for it rewrites the whole file;
// free pages are given back a few at a time instead.
const dsnParameters = "?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&cache=shared&_kine_disable_startup_vacuum=true"

// stopGrace is how long a stop waits for kine to give up its watches and for
// SQLite to move its log into the file.
// Nothing is lost without it: the next start does that.
const stopGrace = 500 * time.Millisecond

// Run implements component.Component.
func (s *SQLite) Run(ctx context.Context, ready func()) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.opts.Socket), 0o700); err != nil {
		return err
	}
	server := s.server()
	// kine would wait for the API server to give up its watches.
	context.AfterFunc(ctx, server.Stop)
	var wg sync.WaitGroup
	_, err := endpoint.Listen(ctx, endpoint.Config{
		WaitGroup:  &wg,
		GRPCServer: server,
		Listener:   s.Endpoint(),
		Endpoint:   "sqlite://" + s.opts.File + dsnParameters,
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
	closed := make(chan struct{})
	go func() { wg.Wait(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(stopGrace):
	}
	return nil
}
