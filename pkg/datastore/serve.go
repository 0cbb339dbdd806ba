package datastore

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/metrics"
	kineserver "github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// dsnParameters: full synchronisation, so that an acknowledged write
	// survives a power cut. kine's VACUUM at start is off, for it rewrites the
	// whole file; free pages are given back a few at a time instead.
	dsnParameters = "?_journal_mode=WAL&_busy_timeout=30000&_synchronous=FULL&_txlock=immediate&_stmt_cache_size=20&cache=shared&_kine_disable_startup_vacuum=true"

	// emulatedVersion of etcd tells the API server what it may ask for.
	emulatedVersion = "3.6.11"

	// notifyInterval is how often a watch without changes is told the newest
	// revision. The API server asks whenever it needs it; this only keeps the
	// revisions of quiet watches younger than the compaction (5 minutes).
	notifyInterval = time.Minute
)

// served is the datastore while it is open.
type served struct {
	server *grpc.Server
	cancel context.CancelFunc // ends kine's work
	wg     sync.WaitGroup     // of kine's work and of the server
}

// serve opens the file and serves it on the socket. kine's own assembly of the
// same parts is not used: it would take failed writes for stored ones, and it
// waits for clients at the end.
func (s *SQLite) serve() (*served, error) {
	ctx, cancel := context.WithCancel(context.Background())
	run := &served{server: s.newServer(), cancel: cancel}
	config := &drivers.Config{
		DataSourceName: s.opts.File + dsnParameters,
		// SQLite has one writer at a time; more connections only cost memory.
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: 4, MaxOpen: 8, MaxIdleTime: 2 * time.Minute},
		MetricsRegisterer:    s.opts.Metrics,
		// The API server compacts; these bound how much one compaction deletes at once.
		CompactTimeout:   30 * time.Second,
		CompactMinRetain: 1000,
		CompactBatchSize: 1000,
		PollBatchSize:    500,
		// Nobody else writes to the file and kine notices its own writes at
		// once, so polling is only a safety net.
		PollInterval: 5 * time.Second,
	}
	_, dialect, err := sqlite.NewVariant(ctx, &run.wg, "sqlite3", config)
	if err != nil {
		cancel()
		return nil, err
	}
	if s.opts.Metrics != nil {
		s.opts.Metrics.MustRegister(metrics.SQLTotal, metrics.SQLTime, metrics.CompactTotal, metrics.InsertErrorsTotal)
	}
	backend := checkedBackend{logstructured.New(checkedLog{sqllog.New(dialect, &run.wg, config)})}
	if err := backend.Start(ctx); err != nil {
		cancel()
		return nil, err
	}
	listener, err := s.listen(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	bridge := kineserver.New(backend, "unix", notifyInterval, emulatedVersion)
	bridge.Register(run.server)
	s.bridge.Store(bridge)
	run.wg.Go(func() {
		if err := run.server.Serve(listener); err != nil {
			s.opts.Log.Error("the datastore does not serve any more", "error", err)
		}
	})
	return run, nil
}

// stop ends the work and waits for it no longer than grace.
func (r *served) stop(grace time.Duration) {
	// kine's work first: its watches end with it, and no client is waited for.
	r.cancel()
	done := make(chan struct{})
	go func() {
		r.server.Stop()
		r.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(grace):
	}
}

func (s *SQLite) listen(ctx context.Context) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(s.opts.Socket), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(s.opts.Socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.opts.Socket)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", s.opts.Socket, err)
	}
	return listener, os.Chmod(s.opts.Socket, 0o600)
}

// newServer has the limits of etcd, and explains failures of the disk.
func (s *SQLite) newServer() *grpc.Server {
	return grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: embed.DefaultGRPCKeepAliveMinTime}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: embed.DefaultGRPCKeepAliveInterval, Timeout: embed.DefaultGRPCKeepAliveTimeout}),
		grpc.MaxConcurrentStreams(embed.DefaultMaxConcurrentStreams),
		grpc.MaxRecvMsgSize(embed.DefaultMaxRequestBytes+512<<10),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.UnaryInterceptor(s.answer),
	)
}
