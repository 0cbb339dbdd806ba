package datastore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newStore returns a datastore in a folder of its own, and its log.
func newStore(t *testing.T) (*SQLite, *bytes.Buffer) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kds") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var log bytes.Buffer
	return NewSQLite(Options{
		Log:         slog.New(slog.NewTextHandler(&log, nil)),
		File:        filepath.Join(dir, "db", "state.db"),
		SnapshotDir: filepath.Join(dir, "db", "snapshots"),
		Socket:      filepath.Join(dir, "s"),
	}), &log
}

// fill makes the file and writes rows into it; the log of SQLite stays, as
// after kill -9.
func fill(t *testing.T, s *SQLite, rows int) {
	t.Helper()
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert(t, s.opts.File, rows)
}

func insert(t *testing.T, file string, rows int) {
	t.Helper()
	scratch := filepath.Join(t.TempDir(), "copy.db")
	db, err := open(file, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x BLOB)"); err != nil {
		t.Fatal(err)
	}
	for range rows {
		if _, err := db.Exec("INSERT INTO t (x) VALUES (randomblob(1500))"); err != nil {
			t.Fatal(err)
		}
	}
	// Closing would empty the log; the files are taken before and put back.
	for _, suffix := range []string{"", "-wal"} {
		copyFile(t, file+suffix, scratch+suffix)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal"} {
		copyFile(t, scratch+suffix, file+suffix)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, file string) int {
	t.Helper()
	db, err := open(file, "mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var n, highest sql.NullInt64
	if err := db.QueryRow("SELECT count(*), max(id) FROM t").Scan(&n, &highest); err != nil {
		t.Fatal(err)
	}
	if highest.Valid && n.Int64 != highest.Int64 {
		t.Errorf("%d rows, but the highest is %d: there is a gap", n.Int64, highest.Int64)
	}
	return int(n.Int64)
}

func TestANewFileIsPrivateAndWhole(t *testing.T) {
	s, _ := newStore(t)
	// What an interrupted start left.
	if err := os.MkdirAll(filepath.Dir(s.opts.File), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.opts.File+".partial", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.opts.File)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Errorf("mode %v, %d bytes", info.Mode(), info.Size())
	}
	db, err := open(s.opts.File, "mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for pragma, want := range map[string]string{"page_size": "1024", "auto_vacuum": "2", "journal_mode": "wal"} {
		var got string
		if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", pragma, got, err, want)
		}
	}
}

// damages are what can happen to a file, and how it is called.
var damages = []struct {
	name string
	do   func(t *testing.T, file string)
	want string
}{
	{"empty", func(t *testing.T, f string) { truncate(t, f, 0) }, "it is empty"},
	{"another file", func(t *testing.T, f string) { overwrite(t, f, 0, "#!/bin/sh\nexit 0\n") }, "it is not an SQLite file"},
	{"cut inside the header", func(t *testing.T, f string) { truncate(t, f, 10) }, "it is not an SQLite file"},
	{"cut in half", func(t *testing.T, f string) { dropLog(t, f); truncate(t, f, size(t, f)/2) }, "malformed"},
	{"pages overwritten", func(t *testing.T, f string) {
		dropLog(t, f)
		overwrite(t, f, 3*pageSize, strings.Repeat("\xff", 40*pageSize))
	}, "btreeInitPage() returns error code 11"},
}

func dropLog(t *testing.T, file string) {
	t.Helper()
	db, err := open(file, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, file string, n int64) {
	t.Helper()
	if err := os.Truncate(file, n); err != nil {
		t.Fatal(err)
	}
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func overwrite(t *testing.T, file string, at int64, with string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(with), at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestADamagedFileWithoutASnapshotEndsTheStart(t *testing.T) {
	for _, tc := range damages {
		t.Run(tc.name, func(t *testing.T) {
			s, _ := newStore(t)
			fill(t, s, 50)
			tc.do(t, s.opts.File)
			before, err := os.ReadFile(s.opts.File)
			if err != nil {
				t.Fatal(err)
			}
			err = s.prepare(t.Context())
			want := fmt.Sprintf("and there is no snapshot in %s: restore the file from a backup, or move it away to start an empty cluster", s.opts.SnapshotDir)
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), tc.want) ||
				!strings.HasPrefix(err.Error(), "the datastore "+s.opts.File+" is damaged (") {
				t.Errorf("got: %v", err)
			}
			if after, err := os.ReadFile(s.opts.File); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the damaged file was changed (%v)", err)
			}
		})
	}
}

func TestADamagedFileFallsBackToTheNewestSoundSnapshot(t *testing.T) {
	for _, tc := range damages {
		t.Run(tc.name, func(t *testing.T) {
			s, log := newStore(t)
			fill(t, s, 10)
			now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
			for i := range 2 {
				if err := s.saveSnapshot(t.Context(), now.Add(time.Duration(i)*time.Hour)); err != nil {
					t.Fatal(err)
				}
				insert(t, s.opts.File, 5)
			}
			// The newest snapshot is no good.
			if err := os.WriteFile(filepath.Join(s.opts.SnapshotDir, now.Add(9*time.Hour).Format(snapshotName)), []byte("rubbish"), 0o600); err != nil {
				t.Fatal(err)
			}
			tc.do(t, s.opts.File)
			before, err := os.ReadFile(s.opts.File)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.prepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := count(t, s.opts.File); n != 15 {
				t.Errorf("%d rows came back, not 15", n)
			}
			aside, _ := filepath.Glob(s.opts.File + ".damaged-*Z")
			if len(aside) != 1 {
				t.Fatalf("kept aside: %v", aside)
			}
			if after, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the damaged file was changed (%v)", err)
			}
			for _, want := range []string{"Kombi goes on from the newest sound snapshot", tc.want, "a snapshot of the datastore is damaged too", aside[0]} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("%q is not in the log:\n%s", want, log)
				}
			}
			if err := quickCheck(t.Context(), s.opts.File); err != nil {
				t.Error(err)
			}
			if info, _ := os.Stat(s.opts.File); info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v", info.Mode())
			}
		})
	}
}

func TestAFallBackThatWasCutOffIsFinished(t *testing.T) {
	s, _ := newStore(t)
	fill(t, s, 10)
	if err := copySound(t.Context(), s.opts.File, s.opts.File+restored); err != nil {
		t.Fatal(err)
	}
	insert(t, s.opts.File, 5)
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.opts.File); n != 10 {
		t.Errorf("%d rows, not 10", n)
	}
}

func TestTheCheckChangesNothing(t *testing.T) {
	s, _ := newStore(t)
	fill(t, s, 100)
	before := map[string][]byte{}
	for _, suffix := range []string{"", "-wal"} {
		before[suffix], _ = os.ReadFile(s.opts.File + suffix)
	}
	if len(before["-wal"]) == 0 {
		t.Fatal("there is no log to look after")
	}
	if err := quickCheck(t.Context(), s.opts.File); err != nil {
		t.Fatal(err)
	}
	for suffix, was := range before {
		if is, _ := os.ReadFile(s.opts.File + suffix); !bytes.Equal(was, is) {
			t.Errorf("state.db%s had %d bytes and has %d, or others", suffix, len(was), len(is))
		}
	}
}

// A power cut loses the end of the log that was not synced: what is before it
// is there, and nothing half.
func TestACutLogOpensClean(t *testing.T) {
	s, _ := newStore(t)
	fill(t, s, 200)
	log := s.opts.File + "-wal"
	whole := size(t, log)
	last := -1
	for _, keep := range []int64{0, 10, 32, 5000, whole / 3, whole / 2, whole - 1} {
		dir := t.TempDir()
		file := filepath.Join(dir, "state.db")
		copyFile(t, s.opts.File, file)
		copyFile(t, log, file+"-wal")
		truncate(t, file+"-wal", keep)
		cut := NewSQLite(Options{Log: s.opts.Log, File: file, SnapshotDir: filepath.Join(dir, "none")})
		if err := cut.prepare(t.Context()); err != nil {
			t.Errorf("log cut at %d of %d bytes: %v", keep, whole, err)
			continue
		}
		if keep < 5000 {
			continue // not even the table is in it
		}
		n := count(t, file)
		if n < last || n >= 200 {
			t.Errorf("log cut at %d of %d bytes: %d rows", keep, whole, n)
		}
		last = n
	}
	if n := count(t, s.opts.File); n != 200 {
		t.Errorf("the whole log has %d rows", n)
	}
}

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

func TestServesAndStopsAtOnceInSpiteOfWatches(t *testing.T) {
	s, _ := newStore(t)
	run := func() (*clientv3.Client, func() time.Duration) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- s.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatal(err)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client, func() time.Duration {
			began := time.Now()
			cancel()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
	}
	client, stop := run()
	watch := client.Watch(t.Context(), "/a", clientv3.WithPrefix())
	for i := range 20 {
		if err := create(t.Context(), client, fmt.Sprintf("/a/%02d", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-watch:
	case <-time.After(10 * time.Second):
		t.Fatal("the watch brings nothing")
	}
	if took := stop(); took > stopGrace {
		t.Errorf("the stop took %s", took)
	} else {
		t.Logf("the stop took %s", took)
	}
	client, stop = run()
	got, err := client.Get(t.Context(), "/a/", clientv3.WithPrefix())
	if err != nil || len(got.Kvs) != 20 {
		t.Errorf("%d keys, %v", len(got.Kvs), err)
	}
	stop()
}

// create is how the API server creates a key.
func create(ctx context.Context, client *clientv3.Client, key, value string) error {
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("it is there already")
	}
	return err
}

func TestAFullDiskIsExplained(t *testing.T) {
	s, log := newStore(t)
	fill(t, s, 1)
	db, err := open(s.opts.File, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("PRAGMA max_page_count = 1"); err != nil {
		t.Fatal(err)
	}
	fails := true
	write := func(context.Context, any) (any, error) {
		if !fails {
			return "done", nil
		}
		_, err := db.Exec("INSERT INTO t (x) VALUES (randomblob(100000))")
		return nil, errors.Join(err, errors.New("cannot rollback"))
	}
	ask := func() error {
		_, err := s.answer(t.Context(), &etcdserverpb.TxnRequest{}, nil, write)
		return err
	}
	err = ask()
	want := "the disk of the datastore is full"
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
		t.Errorf("a client gets: %v", err)
	}
	if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Healthy: %v", err)
	}
	_ = ask()
	fails = false
	if err := ask(); err != nil {
		t.Error(err)
	}
	if err := s.Healthy(); err != nil {
		t.Errorf("Healthy after a good write: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, "changes to the cluster") })
	if len(lines) != 2 {
		t.Errorf("one line for each change of state, not:\n%s", log)
	}
}
