package faults

import (
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver named "sqlite3"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// databaseFile is the datastore of a server.
func databaseFile(k *harness.Kombi) string {
	return filepath.Join(k.DataDir, "server", "db", "state.db")
}

// checkCopy copies the datastore with its log, as a dead or stopped server
// left it, and has SQLite check the copy.
func checkCopy(t *testing.T, file string) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "state.db")
	copyFile(t, file, copied)
	if _, err := os.Stat(file + "-wal"); err == nil {
		copyFile(t, file+"-wal", copied+"-wal")
	}
	if result := query(t, copied, "PRAGMA quick_check"); result != "ok" {
		t.Errorf("quick_check says: %s", result)
	}
}

func query(t *testing.T, file, statement string) string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var result string
	if err := db.QueryRow(statement).Scan(&result); err != nil {
		return err.Error()
	}
	return result
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}
