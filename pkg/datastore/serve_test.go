package datastore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestServesAndStopsAtOnceInSpiteOfWatches(t *testing.T) {
	t.Run("over the socket", func(t *testing.T) {
		servesAndStops(t, func(s *SQLite) (*clientv3.Client, error) {
			return clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
		})
	})
	t.Run("in the process", func(t *testing.T) {
		servesAndStops(t, func(s *SQLite) (*clientv3.Client, error) { return s.NewClient().Client, nil })
	})
}

func servesAndStops(t *testing.T, connect func(*SQLite) (*clientv3.Client, error)) {
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
		client, err := connect(s)
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
	if err := create(t.Context(), client, "/a/00", "again"); err == nil || err.Error() != "it is there already" {
		t.Errorf("a second create of the key: %v", err)
	}
	if keys, err := stream(t.Context(), client, "/a/"); err != nil || len(keys) != 20 {
		t.Errorf("in parts: %d keys, %v", len(keys), err)
	}
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision("/b"), "=", 0)).Then(clientv3.OpPut("/b", "x", clientv3.WithLease(lease.ID))).Commit(); err != nil {
		t.Errorf("a key with a lease: %v", err)
	}
	stop()
}

// stream lists the keys below a prefix in parts.
func stream(ctx context.Context, client *clientv3.Client, prefix string) (keys []string, err error) {
	parts, err := client.GetStream(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for part := range parts {
		if err := part.Err(); err != nil {
			return keys, err
		}
		for _, kv := range part.RangeResponse.GetKvs() {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys, nil
}

// create is how the API server creates a key.
func create(ctx context.Context, client *clientv3.Client, key, value string) error {
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("it is there already")
	}
	return err
}
