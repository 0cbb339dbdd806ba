// Package datastore owns the cluster's data: it opens the SQLite file, checks
// it, serves it to the API server as an etcd endpoint through kine, keeps it
// small, and saves snapshots of it.
package datastore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
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
	opts   Options
	bridge atomic.Pointer[server.KVServerBridge] // kine's server while the file is open

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

// stopGrace is how long a stop waits for SQLite to move its log into the file.
// The next start does that too, so nothing is lost without it.
const stopGrace = 500 * time.Millisecond

// Run implements component.Component.
func (s *SQLite) Run(ctx context.Context, ready func()) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	open, err := s.serve()
	if err != nil {
		return fmt.Errorf("cannot open the datastore %s: %w", s.opts.File, err)
	}
	ready()
	s.maintain(ctx)
	open.stop(stopGrace)
	return nil
}
