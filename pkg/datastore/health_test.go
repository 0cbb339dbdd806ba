package datastore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
