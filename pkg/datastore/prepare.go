package datastore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	_ "github.com/mattn/go-sqlite3" // the driver named "sqlite3"
)

// pageSize is small because Kubernetes writes one object of about 1.5 KB at a
// time and kine keeps seven indexes: each commit writes every page it touches,
// so pages of 4096 bytes would triple the bytes written at idle.
const pageSize = 1024

// restored is the suffix of a snapshot's copy that is complete and about to
// take the place of the damaged file.
const restored = ".restored"

// prepare makes the file with the right page size, or checks that what is
// there is sound, falling back to the newest good snapshot when it is not.
func (s *SQLite) prepare(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.opts.File), 0o700); err != nil {
		return fmt.Errorf("cannot make the folder of the datastore: %w", err)
	}
	if _, err := os.Stat(s.opts.File + restored); err == nil {
		// A fall-back was cut off after it was decided.
		return s.replace()
	}
	if _, err := os.Stat(s.opts.File); os.IsNotExist(err) {
		return s.create(ctx)
	}
	damage := quickCheck(ctx, s.opts.File)
	if damage == nil {
		return os.Chmod(s.opts.File, 0o600)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.fallBack(ctx, damage)
}

// create makes an empty file under another name first: a file that is there
// is whole, so an empty one is a damaged one.
func (s *SQLite) create(ctx context.Context) error {
	partial := s.opts.File + ".partial"
	for _, old := range []string{partial, partial + "-wal", partial + "-shm", s.opts.File + "-wal", s.opts.File + "-shm"} {
		if err := os.Remove(old); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("cannot make the datastore: %w", err)
		}
	}
	if err := createEmpty(ctx, partial); err != nil {
		return fmt.Errorf("cannot make the datastore %s: %w; make room on its disk or mend it", s.opts.File, err)
	}
	return rename(partial, s.opts.File)
}

func createEmpty(ctx context.Context, file string) error {
	// Made first with mode 0600: SQLite would obey the umask.
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := open(file, "")
	if err != nil {
		return err
	}
	for _, stmt := range []string{
		fmt.Sprintf("PRAGMA page_size = %d", pageSize),
		"PRAGMA auto_vacuum = INCREMENTAL",
		"PRAGMA journal_mode = WAL",
		"CREATE TABLE kombi (format INTEGER)",
	} {
		if _, err := db.ExecContext(ctx, stmt); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	return db.Close() // which moves the log into the file
}

// open opens an SQLite file; query holds parameters in SQLite's own terms and
// the driver's.
func open(file, query string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: file, RawQuery: "_busy_timeout=10000"}
	if query != "" {
		u.RawQuery += "&" + query
	}
	return sql.Open("sqlite3", u.String())
}

// quickCheck returns nil for a sound SQLite file, else what is wrong with it.
// It changes neither the file nor its log.
func quickCheck(ctx context.Context, file string) error {
	if err := checkHeader(file); err != nil {
		return err
	}
	db, err := open(file, "mode=ro")
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

// checkHeader keeps SQLite away from files that are none of its own. It would
// take an empty one for a new one and throw its log away.
func checkHeader(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	header := make([]byte, 16)
	n, err := f.Read(header)
	switch {
	case n == 0:
		return errors.New("it is empty")
	case err != nil:
		return err
	case string(header[:n]) != "SQLite format 3\x00":
		return errors.New("it is not an SQLite file")
	}
	return nil
}

// rename gives a file its name for good: it is on the disk before its name is.
func rename(from, to string) error {
	if err := syncFile(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncFile(filepath.Dir(to))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}
