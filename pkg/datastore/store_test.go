package datastore

import (
	"bytes"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
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
