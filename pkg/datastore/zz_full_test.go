package datastore

import (
	"fmt"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
	"log/slog"
	"runtime/pprof"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

func TestZZFull(t *testing.T) {
	dir := os.Getenv("KFULL")
	if dir == "" { t.Skip() }
	s := NewSQLite(Options{Log: slog.Default(), File: filepath.Join(dir, "db", "state.db"), SnapshotDir: filepath.Join(dir, "snap"), Socket: "/tmp/kf/zz.sock"})
	ready := make(chan struct{})
	go func() { fmt.Println(s.Run(t.Context(), func() { close(ready) })) }()
	<-ready
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
	if err != nil { t.Fatal(err) }
	_ = client.Watch(t.Context(), "/a", clientv3.WithPrefix())
	val := string(make([]byte, 1500))
	for g := range 8 {
	go func() {
	for i := 0; t.Context().Err() == nil; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		b := time.Now()
		err := create(ctx, client, fmt.Sprintf("/a/%d-%02d", g, i), val)
		cancel()
		if err != nil || i%500 == 0 { fmt.Println(g, i, time.Since(b).Round(time.Millisecond), err); if err != nil { time.Sleep(500*time.Millisecond) } }
	}}()
	}
	time.Sleep(time.Second)
	f, _ := os.Create(filepath.Join(dir, "ballast"))
	var at int64
	for chunk := int64(16 << 20); chunk >= 1024; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, chunk); err != nil { chunk /= 2; continue }
		at += chunk
	}
	fmt.Println("FULL", s.space())
	time.Sleep(6*time.Second)
	d, _ := os.Create("/tmp/kf/zz.dump")
	pprof.Lookup("goroutine").WriteTo(d, 1)
	time.Sleep(10*time.Second)
	fmt.Println(s.Healthy())
	os.Remove(filepath.Join(dir, "ballast"))
	time.Sleep(3*time.Second)
	fmt.Println("END", s.Healthy())
}
