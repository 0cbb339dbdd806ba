package datastore

import (
	"context"
	"errors"
	"testing"

	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/server"
)

// brokenLog cannot store anything and holds one key or none.
type brokenLog struct {
	logstructured.Log
	failure error
	event   *server.Event
}

func (l brokenLog) Append(context.Context, *server.Event) (int64, error) { return 0, l.failure }
func (l brokenLog) CurrentRevision(context.Context) (int64, error)       { return 7, nil }
func (l brokenLog) List(context.Context, string, string, int64, int64, bool, bool) (server.EventBatch, error) {
	batch := server.EventBatch{CurrentRev: 7}
	if l.event != nil {
		batch.Events = append(batch.Events, l.event)
	}
	return batch, nil
}

func TestAWriteThatFailsIsNeverReportedAsDone(t *testing.T) {
	ctx, full := t.Context(), errors.New("disk is full")
	there := &server.Event{KV: &server.KeyValue{Key: "k", ModRevision: 5}}
	gone := &server.Event{Delete: true, KV: &server.KeyValue{Key: "k", ModRevision: 5}}
	for name, event := range map[string]*server.Event{"no key": nil, "a key": there, "a deleted key": gone} {
		b := checkedBackend{logstructured.New(checkedLog{brokenLog{failure: full, event: event}})}
		if revision, err := b.Create(ctx, "k", nil, 0); !errors.Is(err, full) {
			t.Errorf("%s: Create: %d, %v", name, revision, err)
		}
		if _, _, updated, err := b.Update(ctx, "k", nil, 5, 0); updated || !errors.Is(err, full) {
			t.Errorf("%s: Update: %t, %v", name, updated, err)
		}
		if _, _, deleted, err := b.Delete(ctx, "k", 5); deleted || !errors.Is(err, full) {
			t.Errorf("%s: Delete: %t, %v", name, deleted, err)
		}
	}
	// A conflict is none of this.
	b := checkedBackend{logstructured.New(checkedLog{brokenLog{failure: server.ErrKeyExists, event: there}})}
	if _, err := b.Create(ctx, "k", nil, 0); !errors.Is(err, server.ErrKeyExists) {
		t.Errorf("Create of a key that is there: %v", err)
	}
	if _, kv, updated, err := b.Update(ctx, "k", nil, 4, 0); err != nil || updated || kv == nil {
		t.Errorf("Update of an old revision: %v, %t, %v", kv, updated, err)
	}
}
