// Command pagesize measures what one update of an object costs the disk, with
// kine on SQLite files of different page sizes. The decision that rests on it is
// docs/adr/0004-sqlite-page-size-and-synchronous.md.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/endpoint"
	_ "github.com/mattn/go-sqlite3" // the driver named "sqlite3"
	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	objects    = 300  // in the datastore, as on a small cluster
	updates    = 2000 // of one of them after the other
	objectSize = 1500
)

func main() {
	logrus.SetOutput(io.Discard)
	fmt.Println("| page size | synchronous | written per update | updates per second |")
	fmt.Println("|---|---|---|---|")
	for _, mode := range []string{"NORMAL", "FULL"} {
		for _, size := range []int{4096, 2048, 1024, 512} {
			written, rate, err := measure(size, mode)
			if err != nil {
				slog.Error("measurement failed", "pageSize", size, "error", err)
				os.Exit(1)
			}
			fmt.Printf("| %d | %s | %.1f kB | %.0f |\n", size, mode, written/1000, rate)
		}
	}
}

func measure(pageSize int, synchronous string) (bytesPerUpdate, perSecond float64, err error) {
	dir, err := os.MkdirTemp("", "pagesize")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "state.db")
	if err := create(file, pageSize); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	socket := "unix://" + filepath.Join(dir, "kine.sock")
	_, err = endpoint.Listen(ctx, endpoint.Config{
		WaitGroup: &wg, Listener: socket,
		Endpoint:             "sqlite://" + file + "?_journal_mode=WAL&_busy_timeout=30000&_txlock=immediate&cache=shared&_kine_disable_startup_vacuum=true&_synchronous=" + synchronous,
		ConnectionPoolConfig: generic.ConnectionPoolConfig{MaxIdle: 4, MaxOpen: 8},
		NotifyInterval:       5 * time.Second, EmulatedETCDVersion: "3.6.11", LogFormat: "plain",
		CompactTimeout: 30 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500, PollInterval: 5 * time.Second,
	})
	if err != nil {
		return 0, 0, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{socket}, DialTimeout: 5 * time.Second})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = client.Close() }()
	value := strings.Repeat("x", objectSize)
	revisions := make([]int64, objects)
	for i := range revisions {
		if revisions[i], err = put(ctx, client, i, 0, value); err != nil {
			return 0, 0, err
		}
	}
	began, before := time.Now(), written()
	for i := range updates {
		n := i % objects
		if revisions[n], err = put(ctx, client, n, revisions[n], value); err != nil {
			return 0, 0, err
		}
	}
	return float64(written()-before) / updates, updates / time.Since(began).Seconds(), nil
}

func create(file string, pageSize int) error {
	db, err := sql.Open("sqlite3", file)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, stmt := range []string{
		fmt.Sprintf("PRAGMA page_size = %d", pageSize), "PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA journal_mode = WAL", "CREATE TABLE made (x INTEGER)",
	} {
		if _, err := db.Exec(stmt); err != nil {
			return err
		}
	}
	return nil
}

// put writes as the API server does: only over the revision that it knows.
func put(ctx context.Context, client *clientv3.Client, n int, revision int64, value string) (int64, error) {
	key := fmt.Sprintf("/registry/leases/kube-node-lease/node-%d", n)
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, value)).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return 0, err
	}
	if !answer.Succeeded {
		return 0, fmt.Errorf("%s was changed by somebody else", key)
	}
	return answer.Header.Revision, nil
}

// written is what this process caused to be written to disk so far, in bytes.
func written() int64 {
	data, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}
