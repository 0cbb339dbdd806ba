package datastore

import (
	"context"
	"io"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
)

// NewClient returns a client that calls the open datastore without a connection:
// requests are function calls, watches are channels. The API server makes one
// for each resource; over sockets that would be some seventy connections to its
// own process. The component must be ready.
func (s *SQLite) NewClient() *kubernetes.Client {
	bridge := s.bridge.Load()
	client := clientv3.NewCtxClient(context.Background())
	client.KV = clientv3.NewKVFromKVClient(&kvClient{store: s, bridge: bridge}, client)
	client.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(bridge), client)
	client.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(bridge), client, time.Second)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(adapter.MaintenanceServerToMaintenanceClient(bridge), client)
	kube := &kubernetes.Client{Client: client}
	kube.Kubernetes = kube
	return kube
}

// kvClient calls the methods of kine's server, through the same handling of
// failures as requests that come by the socket.
type kvClient struct {
	store  *SQLite
	bridge *server.KVServerBridge
}

// call sends one request through answer.
func call[Request, Response any](ctx context.Context, s *SQLite, request Request, method func(context.Context, Request) (Response, error)) (Response, error) {
	response, err := s.answer(ctx, request, nil, func(ctx context.Context, _ any) (any, error) {
		return method(ctx, request)
	})
	typed, _ := response.(Response)
	return typed, err
}

func (c *kvClient) Range(ctx context.Context, in *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	return call(ctx, c.store, in, c.bridge.Range)
}

func (c *kvClient) Put(ctx context.Context, in *etcdserverpb.PutRequest, _ ...grpc.CallOption) (*etcdserverpb.PutResponse, error) {
	return call(ctx, c.store, in, c.bridge.Put)
}

func (c *kvClient) DeleteRange(ctx context.Context, in *etcdserverpb.DeleteRangeRequest, _ ...grpc.CallOption) (*etcdserverpb.DeleteRangeResponse, error) {
	return call(ctx, c.store, in, c.bridge.DeleteRange)
}

func (c *kvClient) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	return call(ctx, c.store, in, c.bridge.Txn)
}

func (c *kvClient) Compact(ctx context.Context, in *etcdserverpb.CompactionRequest, _ ...grpc.CallOption) (*etcdserverpb.CompactionResponse, error) {
	return call(ctx, c.store, in, c.bridge.Compact)
}

// RangeStream answers a list in parts.
func (c *kvClient) RangeStream(ctx context.Context, in *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (etcdserverpb.KV_RangeStreamClient, error) {
	ctx, cancel := context.WithCancel(ctx)
	parts := &rangeStream{ctx: ctx, parts: make(chan *etcdserverpb.RangeStreamResponse)}
	go func() {
		defer cancel()
		if parts.err = c.bridge.RangeStream(in, rangeStreamServer{stream: parts}); parts.err == nil {
			parts.err = io.EOF
		}
		close(parts.parts)
	}()
	return parts, nil
}

// rangeStream is the client's end of a list in parts. Of grpc's stream it has
// what etcd's client uses.
type rangeStream struct {
	grpc.ClientStream
	ctx   context.Context
	parts chan *etcdserverpb.RangeStreamResponse
	err   error // of the end; set before parts is closed
}

// Recv implements etcdserverpb.KV_RangeStreamClient.
func (r *rangeStream) Recv() (*etcdserverpb.RangeStreamResponse, error) {
	part, ok := <-r.parts
	if !ok {
		return nil, r.err
	}
	return part, nil
}

// Context implements grpc.ClientStream.
func (r *rangeStream) Context() context.Context { return r.ctx }

// rangeStreamServer is the server's end.
type rangeStreamServer struct {
	grpc.ServerStream
	stream *rangeStream
}

// Send implements etcdserverpb.KV_RangeStreamServer.
func (r rangeStreamServer) Send(part *etcdserverpb.RangeStreamResponse) error {
	select {
	case r.stream.parts <- part:
		return nil
	case <-r.stream.ctx.Done():
		return r.stream.ctx.Err()
	}
}

// Context implements grpc.ServerStream.
func (r rangeStreamServer) Context() context.Context { return r.stream.ctx }
