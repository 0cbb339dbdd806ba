package datastore

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/server"
)

// kine 0.17 forgets why a write failed: it looks whether the key is there, and
// when it is not, reports a create as done, and when it is, an update as one
// that came too late, which the API server then repeats until its client gives
// up. So a failure of the log is noted beside kine and put in the place of its
// answer.
type (
	checkedLog     struct{ logstructured.Log }
	checkedBackend struct{ server.Backend }
)

// note is where a failure of one write is kept, in the context of the write.
type (
	note    struct{ failure error }
	noteKey struct{}
)

// notStored is a write that failed. It passes for a cancelled one, because
// kine logs the whole object for any other.
type notStored struct{ cause error }

func (e *notStored) Error() string        { return e.cause.Error() }
func (e *notStored) Unwrap() error        { return e.cause }
func (e *notStored) Is(target error) bool { return target == context.Canceled }

// Append implements logstructured.Log.
func (l checkedLog) Append(ctx context.Context, event *server.Event) (int64, error) {
	revision, err := l.Log.Append(ctx, event)
	if n, ok := ctx.Value(noteKey{}).(*note); ok && err != nil && !errors.Is(err, server.ErrKeyExists) {
		n.failure = &notStored{err}
	}
	return revision, err
}

// Create implements server.Backend.
func (b checkedBackend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	n := new(note)
	revision, err := b.Backend.Create(context.WithValue(ctx, noteKey{}, n), key, value, lease)
	if n.failure != nil {
		return 0, n.failure
	}
	return revision, err
}

// Update implements server.Backend.
func (b checkedBackend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	n := new(note)
	current, kv, updated, err := b.Backend.Update(context.WithValue(ctx, noteKey{}, n), key, value, revision, lease)
	if n.failure != nil {
		return 0, nil, false, n.failure
	}
	return current, kv, updated, err
}

// Delete implements server.Backend.
func (b checkedBackend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	n := new(note)
	current, kv, deleted, err := b.Backend.Delete(context.WithValue(ctx, noteKey{}, n), key, revision)
	if n.failure != nil {
		return 0, nil, false, n.failure
	}
	return current, kv, deleted, err
}
