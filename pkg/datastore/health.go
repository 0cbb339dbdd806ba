package datastore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lowSpace is when the disk counts as full, in bytes: SQLite's log and a
// compaction still fit.
const lowSpace = 8 << 20

// Healthy implements component.HealthChecker.
func (s *SQLite) Healthy() error {
	s.mu.Lock()
	write, snapshot := s.writeFailure, s.snapshotFailed
	s.mu.Unlock()
	if write != nil {
		return write
	}
	if err := s.space(); err != nil {
		return err
	}
	return snapshot
}

// space returns an error when the disk of the datastore is full or about to be.
func (s *SQLite) space() error {
	dir := filepath.Dir(s.opts.File)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("the disk of the datastore in %s does not answer: %w", dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < lowSpace {
		return fmt.Errorf("the disk of the datastore is full, only %d KB are left in %s: free some space there, Kombi goes on by itself", free>>10, dir)
	}
	return nil
}

// answer handles one request.
func (s *SQLite) answer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, compaction := request.(*etcdserverpb.CompactionRequest); compaction {
		// kine ends the process when a compaction cannot be committed. The API
		// server asks again in a few minutes.
		if err := s.space(); err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	response, err := handler(ctx, request)
	var failed *notStored
	if errors.As(err, &failed) {
		err = failed.cause
	}
	if failure := s.explain(err); failure != nil {
		s.setWriteFailure(failure)
		return nil, status.Error(codes.ResourceExhausted, failure.Error())
	}
	if _, write := request.(*etcdserverpb.TxnRequest); write && err == nil && s.failing() && s.space() == nil {
		s.setWriteFailure(nil)
	}
	return response, err
}

// explain turns an error of SQLite that is about the disk into a sentence, and
// returns nil for others.
func (s *SQLite) explain(err error) error {
	kind := faultOf(err)
	// A full disk has many faces: the log cannot be made, or not be mapped.
	if kind != noFault && kind != refused {
		if full := s.space(); full != nil {
			return full
		}
	}
	switch kind {
	case diskFull:
		return fmt.Errorf("the disk of the datastore is full: free some space in %s, Kombi goes on by itself", filepath.Dir(s.opts.File))
	case fileDamaged:
		return fmt.Errorf("the datastore %s is damaged (%w): restart Kombi, it checks the file and goes back to the newest snapshot", s.opts.File, err)
	case diskFails:
		return fmt.Errorf("the disk of the datastore %s fails (%w): look at the kernel's log, and replace or mend the disk", s.opts.File, err)
	}
	return nil
}

func (s *SQLite) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeFailure != nil
}

// setWriteFailure remembers whether changes can be stored, and logs when that
// is new.
func (s *SQLite) setWriteFailure(err error) {
	s.mu.Lock()
	was := s.writeFailure
	s.writeFailure = err
	s.mu.Unlock()
	switch {
	case was == nil && err != nil:
		s.opts.Log.Error("changes to the cluster cannot be stored", "error", err)
	case was != nil && err == nil:
		s.opts.Log.Info("changes to the cluster can be stored again")
	}
}
