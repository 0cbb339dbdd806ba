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
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
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
	stop()
}

// create is how the API server creates a key.
func create(ctx context.Context, client *clientv3.Client, key, value string) error {
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("it is there already")
	}
	return err
}
