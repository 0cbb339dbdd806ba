package datastore

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

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
