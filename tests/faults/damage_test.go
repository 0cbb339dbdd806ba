package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestDamagedDatastore damages the SQLite file of a stopped server.
func TestDamagedDatastore(t *testing.T) {
	k := newServer(t, "damage")
	t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
	note(t, k, "before")
	k.Stop(t)
	file := databaseFile(k)
	good := filepath.Join(harness.Dir(), "good.db")
	copyFile(t, file, good)

	// refuses starts a server that must not start, and returns its reason.
	refuses := func(t *testing.T) string {
		t.Helper()
		began := time.Now()
		k.Start(t)
		harness.Eventually(t, 30*time.Second, "the start ends", func(context.Context) error {
			if k.Running() {
				return errors.New("it runs")
			}
			return nil
		})
		t.Logf("after %s: %s", time.Since(began).Round(time.Millisecond), lastLine(t, k.Log))
		return lastLine(t, k.Log)
	}
	snapshots := filepath.Join(filepath.Dir(file), "snapshots")
	advice := "and there is no snapshot in " + snapshots + ": restore the file from a backup, or move it away to start an empty cluster"

	for _, tc := range []struct {
		name   string
		damage func(t *testing.T)
		want   string
	}{
		{"overwritten, no snapshot", func(t *testing.T) { overwrite(t, file, 8192, 256<<10) }, "is damaged ("},
		{"cut, no snapshot", func(t *testing.T) { cut(t, file, 2) }, "is damaged (database disk image is malformed)"},
		{"empty, no snapshot", func(t *testing.T) { cut(t, file, 0) }, "is damaged (it is empty)"},
		{"another file, no snapshot", func(t *testing.T) { overwrite(t, file, 0, 64) }, "is damaged (it is not an SQLite file)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.RemoveAll(snapshots); err != nil {
				t.Fatal(err)
			}
			tc.damage(t)
			reason := refuses(t)
			for _, want := range []string{"kombi: component datastore: the datastore " + file, tc.want, advice} {
				if !strings.Contains(reason, want) {
					t.Errorf("%q is not in it", want)
				}
			}
			restore(t, good, file)
		})
	}

	t.Run("overwritten, with snapshots", func(t *testing.T) {
		if err := os.MkdirAll(snapshots, 0o700); err != nil {
			t.Fatal(err)
		}
		saved := filepath.Join(snapshots, "state-20260101T000000Z.db")
		if result := query(t, good, "VACUUM INTO '"+saved+"'"); result != "sql: no rows in result set" {
			t.Fatal(result)
		}
		if err := os.WriteFile(filepath.Join(snapshots, "state-20260102T000000Z.db"), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		start(t, k)
		note(t, k, "after")
		k.Kill(t)
		overwrite(t, file, 8192, 256<<10)
		damaged, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
		if !noted(t, k, "before") || noted(t, k, "after") {
			t.Errorf("the cluster is not that of the snapshot: before %t, after %t", noted(t, k, "before"), noted(t, k, "after"))
		}
		note(t, k, "again")
		aside, _ := filepath.Glob(file + ".damaged-*Z")
		if len(aside) != 1 {
			t.Fatalf("kept aside: %v", aside)
		}
		if kept, err := os.ReadFile(aside[0]); err != nil || string(kept) != string(damaged) {
			t.Errorf("the damaged file was changed (%v)", err)
		}
		log, _ := os.ReadFile(k.Log)
		for _, want := range []string{
			"the datastore is damaged; Kombi goes on from the newest sound snapshot, and what was changed after it is lost", saved,
			"a snapshot of the datastore is damaged too", "the damaged datastore was kept aside",
		} {
			if !strings.Contains(string(log), want) {
				t.Errorf("%q is not in the log", want)
			}
		}
	})

	t.Run("the log of SQLite is cut", func(t *testing.T) {
		w := startWriters(t, k.Config, "default")
		for _, parts := range []int64{2, 3, 0} {
			if err := w.waitAcknowledged(100); err != nil {
				t.Fatal(err)
			}
			k.Kill(t)
			cutLog(t, file, parts)
			checkCopy(t, file)
			t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
			if !noted(t, k, "before") {
				t.Error("what was stored long before is gone")
			}
		}
	})
	k.Stop(t)
	checkCopy(t, file)
}

func note(t *testing.T, k *harness.Kombi, name string) {
	t.Helper()
	k.Kubectl(t, "create", "configmap", name)
}

func noted(t *testing.T, k *harness.Kombi, name string) bool {
	t.Helper()
	_, err := k.Client.CoreV1().ConfigMaps("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// restore puts a good file back.
func restore(t *testing.T, good, file string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(file + suffix); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	copyFile(t, good, file)
}

// overwrite writes rubbish over a part of a file.
func overwrite(t *testing.T, file string, at int64, n int) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(strings.Repeat("\xff", n)), at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// cut takes away all but the given part of a file.
func cut(t *testing.T, file string, parts int64) {
	t.Helper()
	truncate(t, file, part(t, file, parts))
}

func part(t *testing.T, file string, parts int64) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if parts == 0 {
		return 0
	}
	return info.Size() / parts
}

func truncate(t *testing.T, file string, size int64) {
	t.Helper()
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
}

// cutLog takes away the end of SQLite's log, as a power cut may take what was not synced
// yet: all but the given part of it, and never frames from which a checkpoint began to
// copy pages, because SQLite syncs the log before that. Where it is says the
// log's index (WalCkptInfo.nBackfillAttempted of "WAL-mode file format", sqlite.org).
func cutLog(t *testing.T, database string, parts int64) {
	t.Helper()
	file := database + "-wal"
	index, err := os.ReadFile(database + "-shm")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	keep := part(t, file, parts)
	const header, frameHeader, attempted = 32, 24, 128
	if len(index) > attempted+4 && len(log) >= header {
		frames := int64(binary.NativeEndian.Uint32(index[attempted:]))
		pageSize := int64(binary.BigEndian.Uint32(log[8:]))
		if frames > 0 {
			keep = min(max(keep, header+frames*(frameHeader+pageSize)), int64(len(log)))
		}
	}
	truncate(t, file, keep)
}
